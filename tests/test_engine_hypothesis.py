"""The exact fast path against the plain one and against the oracle, on random models, batches, roles and operations.

How many of the drawn conditions took which path, and why, is printed at the end; none is left out without a reason.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import Case, Drawn, alone, case_of, drawn, state_of
from small import named

from workbench.engine import measure_each, run_each
from workbench.interventions import Edges, Intervention, Stream
from workbench.metrics import AGAINST_CLEAN, METRICS
from workbench.running import Run, run

PLAIN = {
    "a custom function changes a whole tensor": "custom",
    "whether it changes anything shows only in rows that cannot matter": "any",
    "other edits of its list hold what it changes": "several",
    "one of its edits changes nothing in some example": "any",
}
"""The reasons for which the fast path may hand a condition on to the plain one, and of which lists they may be given:
of those that hold a custom function, of any (a note must say of the whole tensor that nothing changed there), of those
of several edits."""

TOLERANCE = {torch.float64: 1e-10, torch.float32: 5e-6}
"""Of the largest logit of a condition."""

TALLY: Counter = Counter()
MORE: dict = {}
"""The checks by name, with how many cases each has; a slow test runs twice as many."""


@pytest.fixture(scope="module", autouse=True)
def tally(request):
    """Prints which path the drawn conditions took, with the reasons."""
    yield
    reporter = request.config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None and TALLY:
        reporter.write_line(f"\n{sum(TALLY.values())} drawn conditions, by the path that they took:")
        for path, times in TALLY.most_common():
            reporter.write_line(f"{times:6d}  {path}")


def cases(n: int, **fixed):
    """A test of n drawn cases."""

    def decorate(check):
        MORE[check.__name__] = check, fixed, n
        return settings(derandomize=True, max_examples=n, deadline=None)(given(drawn(**fixed))(check))

    return decorate


def counted(case: Case, label: str, got: Run) -> None:
    """Counts a condition's path, and refuses "hooks" without one of the reasons there are."""
    TALLY[got.engine] += 1
    listed = case.conditions[label]
    kinds = {"any"} if listed else set()
    kinds |= {"custom"} if any(one.what.op == "custom" for one in listed) else set()
    kinds |= {"several"} if len(listed) > 1 else set()
    # Blocks of one batch may have come by different paths.
    for one in got.engine.split("; "):
        reason = one.removeprefix("hooks: ")
        assert one == "rows" or PLAIN.get(reason) in kinds, f"{got.engine}: of {case.said(label)}"


def given_by_engine(case: Case, labels=None, **more) -> dict[str, Run]:
    """`run_each` on these conditions; the model is as before."""
    before = state_of(case.model)
    out = run_each(case.model, case.batch, **{**case.handed(labels), **more})
    assert state_of(case.model) == before
    assert list(out) == list(labels or case.conditions)
    return out


def same(case: Case, label: str, got: Run, want: Run, tolerance: float | None = None) -> None:
    """Equal logits within the tolerance, and the same examples and notes."""
    scale = TOLERANCE[want.logits.dtype] if tolerance is None else tolerance
    assert got.logits.shape == want.logits.shape and got.logits.dtype == want.logits.dtype, case.said(label)
    off, most = float((got.logits - want.logits).abs().max()), float(want.logits.abs().max())
    assert off <= scale * most, f"off by {off:.3g} of {most:.3g}: {case.said(label)}"
    assert torch.equal(got.kept, want.kept) and set(got.skipped) == set(want.skipped), case.said(label)
    other = set(got.notes) ^ set(want.notes)
    if any(isinstance(one.where, Edges) and one.what.op == "scale" for one in case.conditions[label]):
        # Of a row scaled whole, the softmax takes the factor out again, to the bit or to rounding.
        other = {note for note in other if "landed and changed nothing" not in note}
    assert not other, f"{other}: {case.said(label)}"
    assert torch.equal(got.batch.tokens, want.batch.tokens), case.said(label)


def refuses_as_alone(case: Case, refused: dict[str, Exception]) -> None:
    """All conditions together raise what one of those refused raises alone; each of these alone raises the same."""
    before = state_of(case.model)
    for label, error in refused.items():
        TALLY[f"refused: {type(error).__name__}"] += 1
        by_itself = replace(case, conditions={label: case.conditions[label]})
        for expected in alone(by_itself)[1].values():
            with pytest.raises(type(expected)) as raised:
                run_each(case.model, case.batch, **by_itself.handed())
            assert type(raised.value) is type(expected), case.said(label)
    if refused and len(case.conditions) > 1:
        with pytest.raises(tuple({type(error) for error in refused.values()})) as raised:
            run_each(case.model, case.batch, **case.handed())
        # Where all conditions together leave no example, no single one is at fault.
        named_in = [label for label in refused if f"{label}" in str(raised.value)]
        assert named_in or "no example is left" in str(raised.value), str(raised.value)
    assert state_of(case.model) == before


@cases(24)
def test_each_condition_gives_what_run_gives_for_it_alone(numbers: Drawn):
    case = case_of(numbers)
    found, refused = alone(case)
    if found:
        for label, got in given_by_engine(case, list(found)).items():
            counted(case, label, got)
            same(case, label, got, found[label])
    refuses_as_alone(case, refused)


@cases(6)
def test_the_plain_path_gives_what_run_gives_to_the_bit(numbers: Drawn):
    case = case_of(numbers)
    found, _ = alone(case)
    if found:
        got = given_by_engine(case, list(found), engine="hooks")
        for label, one in got.items():
            same(case, label, one, found[label], 0.0)
            assert one.engine.startswith("hooks: ")


@cases(14)
def test_each_condition_equals_the_oracle(numbers: Drawn):
    case = case_of(numbers)
    found, _ = alone(case)
    for label, got in (given_by_engine(case, list(found)) if found else {}).items():
        listed = case.conditions[label]
        if why := beyond_the_oracle(case, listed):
            TALLY[f"not put to the oracle: {why}"] += 1
            continue
        counted(case, label, got)
        kept = {name: donor if name == "reference" else donor.select(got.kept) for name, donor in case.donors.items()}
        donors = named(kept, listed)
        want = torch.from_numpy(oracle.logits(case.model, got.batch, listed, donors, named(case.donors, listed)))
        valid = got.batch.valid
        if case.positions == "read":
            index = got.batch.read_positions()
            want, valid = want.gather(1, index[..., None].expand(-1, -1, want.shape[-1])), valid.gather(1, index)
        off, most = float((got.logits - want).abs()[valid].max()), float(want.abs().max())
        assert off <= TOLERANCE[torch.float64] * most, f"off by {off:.3g} of {most:.3g}: {case.said(label)}"


def beyond_the_oracle(case: Case, listed) -> str:
    """Why the oracle does not know a list; nothing where it does."""
    if any(one.what.op == "custom" for one in listed):
        return "a custom function"
    if len(case.model.parts) > 1 and any(one.what.op == "path" for one in listed):
        return "a path between the parts of a pair"
    return ""


@cases(12)
def test_an_example_in_which_nothing_changes_is_the_clean_one_to_the_bit(numbers: Drawn):
    case = case_of(numbers)
    case.conditions["clean"] = []
    found, _ = alone(case)
    clean = found["clean"].logits if "clean" in found else None
    got = {} if clean is None else given_by_engine(case, list(found))
    for label, one in got.items():
        counted(case, label, one)
        if any(isinstance(one.where, Edges) and one.what.op == "scale" for one in case.conditions[label]):
            # Of a row scaled whole, the softmax takes the factor out again, to the bit or to rounding.
            TALLY["bits not asked for: a factor that the softmax may take out again"] += 1
            continue
        unchanged = (found[label].logits == clean).flatten(1).all(1)
        assert torch.equal(got["clean"].logits, clean), case.said(label)
        off = (one.logits[unchanged] - clean[unchanged]).abs()
        if not off.any():
            continue
        # Of what an edit does change, and nothing comes through, a rounding may be left; never of one that is idle.
        assert off.max() <= 1e-14 * clean.abs().max(), case.said(label)
        assert not any("changed nothing" in note for note in found[label].notes), case.said(label)
        TALLY["bits not asked for: something changed, of which nothing came through"] += 1


@cases(8, lists=st.tuples(st.tuples(st.integers(0, 10**6))))
def test_a_sweep_of_one_operation_over_layers_and_heads_gives_what_run_gives(numbers: Drawn):
    case = case_of(numbers)
    (one,) = case.conditions.popitem()[1]
    case.conditions.update(swept(case, one))
    found, _ = alone(case)
    for label, got in (given_by_engine(case, list(found)) if found else {}).items():
        counted(case, label, got)
        same(case, label, got, found[label])


def swept(case: Case, one: Intervention) -> dict[str, list[Intervention]]:
    """The same operation in each layer and each head of its part, and in all heads of a layer; a path or a custom
    function as it is."""
    if one.where is None or one.what.op == "path":
        return {str(one): [one]}
    part = case.model.parts[one.where.in_model]
    places: list[dict] = [{"layer": layer} for layer in range(part.n_layers)]
    if not isinstance(one.where, Stream):
        n_heads = part.n_heads if isinstance(one.where, Edges) else part.heads_at(one.where.part)
        places = [{**place, "head": head} for place in places for head in (None, *range(n_heads))]
    each = [one.model_copy(update={"where": one.where.model_copy(update=place)}) for place in places]
    return {str(edit): [edit] for edit in each}


@cases(8, examples=st.integers(2, 6))
def test_results_and_notes_do_not_depend_on_the_size_of_chunks(numbers: Drawn):
    case = case_of(numbers)
    found, _ = alone(case)
    for chunk_size in (1, 2, 7) if found else ():
        for label, got in given_by_engine(case, list(found), chunk_size=chunk_size).items():
            counted(case, label, got)
            same(case, label, got, found[label])


@cases(12)
def test_in_float32_results_are_those_of_the_plain_path_within_rounding(numbers: Drawn):
    case = case_of(numbers, torch.float32)
    found, _ = alone(case)
    for label, got in (given_by_engine(case, list(found)) if found else {}).items():
        counted(case, label, got)
        want = found[label]
        off, most = float((got.logits - want.logits).abs().max()), float(want.logits.abs().max())
        assert off <= TOLERANCE[torch.float32] * most, f"off by {off:.3g} of {most:.3g}: {case.said(label)}"


@cases(4)
def test_a_model_in_bfloat16_runs(numbers: Drawn):
    case = case_of(numbers, torch.bfloat16)
    found, _ = alone(case)
    for label, got in (given_by_engine(case, list(found)) if found else {}).items():
        assert got.logits.dtype == torch.bfloat16 and torch.isfinite(got.logits).all(), case.said(label)
        assert torch.equal(got.kept, found[label].kept) and got.engine.startswith("hooks: ")
        TALLY[got.engine] += 1


@cases(6)
def test_neither_order_nor_names_of_conditions_matter(numbers: Drawn):
    case = case_of(numbers)
    found, _ = alone(case)
    if not found:
        return
    got, turned = given_by_engine(case, list(found)), given_by_engine(case, list(found)[::-1])
    handed = case.handed(list(found))
    renamed = {f"renamed {label}": listed for label, listed in handed["conditions"].items()}
    again = run_each(case.model, case.batch, **{**handed, "conditions": renamed})
    for label, one in got.items():
        same(case, label, turned[label], one)
        same(case, label, again[f"renamed {label}"], one, 0.0)


@cases(8)
def test_a_condition_twice_gives_the_same_bits_twice(numbers: Drawn):
    case = case_of(numbers)
    found, _ = alone(case)
    twins = {f"{label} again": case.conditions[label] for label in found}
    case.conditions.update(twins)
    got = given_by_engine(case, [*found, *twins]) if found else {}
    for label in found:
        same(case, label, got[f"{label} again"], got[label], 0.0)


@cases(10, read=st.just(True))
def test_measured_metrics_are_those_of_the_runs(numbers: Drawn):
    case = case_of(numbers)
    found, _ = alone(case)
    if not found:
        return
    clean = alone_clean(case, found)
    handed = case.handed(list(found))
    del handed["positions"]
    names = [*METRICS, *AGAINST_CLEAN]
    if not (clean.batch.labels >= 0).any(1).all():
        with pytest.raises(ValueError, match="nothing is read in examples"):
            measure_each(case.model, case.batch, metrics=names, **handed)
        TALLY["refused: nothing is read in an example"] += len(found)
        return
    before = state_of(case.model)
    measured = measure_each(case.model, case.batch, metrics=names, chunk_size=2, **handed)
    assert state_of(case.model) == before and list(measured) == list(found)
    for label, got in measured.items():
        counted(case, label, got)
        want = found[label]
        assert torch.equal(got.kept, want.kept) and set(got.skipped) == set(want.skipped), case.said(label)
        assert set(got.notes) == set(want.notes), f"{set(got.notes) ^ set(want.notes)}: {case.said(label)}"
        assert got.same == torch.equal(want.logits, clean.logits), case.said(label)
        assert list(got.values) == names
        for name, value in got.values.items():
            expected = (AGAINST_CLEAN[name](want.logits, want.batch, clean.logits) if name in AGAINST_CLEAN
                        else METRICS[name](want.logits, want.batch))  # fmt: skip
            assert np.allclose(value, expected, rtol=1e-9, atol=1e-9), f"{name} of {case.said(label)}"


def alone_clean(case: Case, found: dict[str, Run]) -> Run:
    """The clean run of the examples that the conditions share."""
    some = next(iter(found.values()))
    left_out = {n: "not shared" for n in range(len(case.batch)) if n not in some.kept.tolist()}
    return run(case.model, case.batch, positions="read", left_out=left_out)


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_twice_as_many_cases(name: str):
    check, fixed, n = MORE[name]
    settings(derandomize=True, max_examples=2 * n, deadline=None)(given(drawn(**fixed))(check))()
