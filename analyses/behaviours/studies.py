"""R6–R12: intervals, counts, corrections, donors, controls and labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from analyses.behaviours.cases import (
    EVERY_LAYER,
    Uneven,
    answer,
    batch_of,
    behaviour,
    close,
    equal,
    pattern,
)
from analyses.tools.protocol import feature, reads
from workbench import Batch


@behaviour("R6", "accuracy 100% or 0%", "an exact interval, not a zero-width one")
def a_share_of_all_has_an_interval(tool: Any) -> None:
    interval = feature(tool, "interval", "intervals")
    for n in (10, 100):
        for models in (1, 3):
            all_right, none = (interval([np.full(n, value)] * models) for value in (1.0, 0.0))
            exact = 0.025 ** (1 / n)
            assert all_right.high == 1 and none.low == 0, "an interval of a share leaves [0, 1]"
            assert abs(all_right.low - exact) < 1e-9, f"100% of {n}: from {all_right.low:.4f}, not {exact:.4f}"
            assert abs(none.high - (1 - exact)) < 1e-9, f"0% of {n}: up to {none.high:.4f}, not {1 - exact:.4f}"


@behaviour(
    "R7",
    "some examples cannot be intervened on",
    "planned, run and skipped counts in the table, with the reason",
)
def what_is_left_out_is_counted(tool: Any) -> None:
    study = feature(tool, "study", "studies that leave out and count examples")
    frame = study(Uneven(), {"clean": [], "cut": [tool.cut(answer(1))]}, 9)
    table = tool.summary(frame)
    for row in table.to_dict("records"):
        counts = [int(row[name]) for name in ("planned", "run", "skipped")]
        assert counts == [9, 6, 3], f"{row['condition']}: planned, run, skipped are {counts}, not [9, 6, 3]"
    reasons = frame.loc[frame["skipped"].notna()]
    assert sorted(set(reasons["example"])) == [0, 3, 6], "other examples are skipped than those without an answer"
    assert all("answer" in reason for reason in reasons["skipped"]), "the reason does not name the role"


@behaviour("R8", "20 cells tested at once", "the family's size and the corrected p-values shown")
def a_family_of_tests_is_corrected(tool: Any) -> None:
    tests = feature(tool, "tests", "corrected p-values")
    labels = ["clean", *(f"cut {i}" for i in range(20))]
    right = {label: np.arange(40) % 40 >= (i if i else 0) for i, label in enumerate(labels)}
    frame = _frame(right)
    table = tests(frame, [("clean", label) for label in labels[1:]])
    assert list(table["family"]) == [20] * 20, f"the family's size is {sorted(set(table['family']))}"
    order = np.argsort(table["p"].to_numpy(), kind="stable")
    stepped = np.maximum.accumulate(table["p"].to_numpy()[order] * np.arange(20, 0, -1)).clip(max=1)
    assert np.allclose(table["p_holm"].to_numpy()[order], stepped, rtol=1e-12), "the corrected p-values are not Holm's"
    assert (table["p_holm"] > table["p"])[table["p"] < 0.5].all(), "a p-value is not corrected"


def _frame(right: dict[str, np.ndarray]) -> pd.DataFrame:
    parts = [
        pd.DataFrame({"model": "m", "model_seed": 0, "condition": label, "example": range(len(hit)), "skipped": None,
                      "accuracy": hit.astype(float)})
        for label, hit in right.items()
    ]  # fmt: skip
    return pd.concat(parts, ignore_index=True).astype(dict.fromkeys(("model", "condition", "skipped"), "category"))


@behaviour(
    "R9",
    "mean ablation at a role that sits at different positions",
    "the mean is over the role, not over the position",
)
def a_mean_is_over_the_role(tool: Any) -> None:
    role_mean = feature(tool, "role_mean", "means over a role")
    batch, reference = batch_of(5), batch_of(7, seed=1)
    for layer in EVERY_LAYER:
        got = role_mean(batch, reference, layer, "answer")["z", layer]
        there = tool.record(reference, [("z", layer)])["z", layer]
        want = there[reference.roles["answer"]].mean(0)
        close(got[batch.roles["answer"]], want.expand(5, *want.shape), f"layer {layer}: the mean over the role")
        clean = tool.record(batch, [("z", layer)])["z", layer]
        equal(got[~batch.roles["answer"]], clean[~batch.roles["answer"]], f"layer {layer}: the other positions")


@behaviour("R10", "resample", "no example is its own donor; the same seed gives the same donors")
def no_example_is_its_own_donor(tool: Any) -> None:
    resampled = feature(tool, "resampled", "resampling")
    for n in (2, 3, 12):
        batch = batch_of(n)
        clean = tool.record(batch, [("z", 0)])["z", 0][batch.roles["answer"]].flatten(1)
        donors = [_donors(resampled(batch, 0, "answer", seed), batch, clean) for seed in range(6)]
        again = [_donors(resampled(batch, 0, "answer", seed), batch, clean) for seed in range(6)]
        assert donors == again, "the same seed gives other donors"
        assert all(i != j for one in donors for i, j in enumerate(one)), "an example is its own donor"
        assert all(sorted(one) == list(range(n)) for one in donors), "a donor serves twice"
        assert n == 2 or len({tuple(one) for one in donors}) > 1, "every seed gives the same donors"


def _donors(z: Tensor, batch: Batch, clean: Tensor) -> list[int]:
    got = z[batch.roles["answer"]].flatten(1)
    return [int((clean - row).abs().sum(-1).argmin()) for row in got]


@behaviour("R11", "the top source as a role", "its control is drawn from the same row by the same rule")
def a_control_is_from_the_same_row(tool: Any) -> None:
    derived = feature(tool, "top_and_control", "controls of a top source")
    batch = batch_of(24)
    assert batch.classes is not None
    for layer in EVERY_LAYER:
        for head in range(tool.n_heads):
            weights = pattern(tool, batch, (), layer)[:, head]
            top, control = derived(batch, layer, head, "last", 0)
            assert bool((top[:, -1].sum(-1) == 1).all()) and not top[:, :-1].any(), (
                "not one top source in each last row"
            )
            equal(top[:, -1].int().argmax(-1), weights[:, -1].argmax(-1), "the top source and the largest weight")
            drawn = control.any(-1).any(-1)
            assert bool(drawn.any()) and not control[:, :-1].any(), "a control stands in another row"
            unseen = control & ~reads(tool)
            assert not (control & top).any() and not unseen.any(), "a control is the top source, or hidden"
            one, other = (mask[drawn][:, -1].int().argmax(-1) for mask in (top, control))
            classes = batch.classes[drawn]
            equal(classes.gather(1, one[:, None]), classes.gather(1, other[:, None]), "the classes of top and control")
            equal(control, derived(batch, layer, head, "last", 0)[1], "the controls of one seed")


@behaviour("R12", "a label such as 0.10", "printed as 0.10 in every table format")
def a_label_is_printed_as_it_is(tool: Any) -> None:
    tables = feature(tool, "tables", "tables")
    frame = pd.DataFrame({"label": ["0.10", "1.", "007"], "share": [0.1, 0.25, 1.0], "0.20": [1, 2, 3]})
    for kind, text in tables(frame).items():
        for label in ("0.10", "1.", "007", "0.20"):
            assert label in text, f"{kind} does not print the label {label!r} as it is"


STUDIES = (
    a_share_of_all_has_an_interval,
    what_is_left_out_is_counted,
    a_family_of_tests_is_corrected,
    a_mean_is_over_the_role,
    no_example_is_its_own_donor,
    a_control_is_from_the_same_row,
    a_label_is_printed_as_it_is,
)
