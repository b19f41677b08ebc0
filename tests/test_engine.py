"""`run_each` and `measure_each`: many conditions on the same examples, what is shared, what is refused, what stays."""

from dataclasses import replace

import pytest
import torch
from models_of import KINDS, batch_for, kind_of
from small import ANSWER, BATCH, CORRUPT, OTHER, ROW, all_hooks, named, small, with_role
from torch.nn.modules import module as everywhere

from workbench import explain
from workbench.batch import UNREAD, Batch
from workbench.edits import EmptyRow, InertIntervention, MissingExamples
from workbench.engine import measure_each, run_each
from workbench.interventions import (
    Edges,
    Heads,
    Stream,
    add,
    custom,
    cut,
    freeze,
    keep_only,
    mean,
    patch,
    path,
    resample,
    scale,
    shuffle,
    uniform,
    zero,
)
from workbench.models.config import Mask
from workbench.running import run

MODEL = small()
DONOR = {"corrupt": CORRUPT}
Z = Heads(layer=0, pos="answer", part="z")
SOME = {"cut": [cut(ANSWER)], "nothing": [], "both": [cut(ANSWER), scale(Z, by=2.0)]}
POSITIONS = pytest.mark.parametrize("positions", ["all", "read"])
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


def of_kind(kind):
    """A model of a kind, what it reads, and what a location in its last layer says of the part."""
    model, batch = kind_of(kind), batch_for(KINDS[kind])
    return model, batch, ({"stack": "decoder"} if batch.context is not None else {})


def off(one, other) -> float:
    return float((one - other).abs().max() / other.abs().max())


# What must change no bit


@POSITIONS
@EVERY_KIND
def test_an_empty_condition_is_the_clean_run_to_the_bit(kind, positions):
    model, batch, side = of_kind(kind)
    scaled = scale(Heads(**side, layer=0, part="v"), by=2.0)
    got = run_each(model, batch, {"clean": [], "scaled": [scaled]}, positions=positions)
    assert torch.equal(got["clean"].logits, run(model, batch, positions=positions).logits)
    assert not torch.equal(got["scaled"].logits, got["clean"].logits)


IDLE = {
    "patch of a head": lambda side: patch(Heads(**side, layer=0, part="z"), donor="same", align="position"),
    "patch of keys": lambda side: patch(Heads(**side, layer=1, part="k"), donor="same", align="position"),
    "patch of the stream": lambda side: patch(Stream(**side, layer=1, part="attn_out"), donor="same", align="position"),
    "patch of weights": lambda side: patch(Edges(**side, layer=1), donor="same", align="position"),
    "freeze of a head": lambda side: freeze(Heads(**side, layer=1, part="z")),
    "freeze of weights": lambda side: freeze(Edges(**side, layer=0)),
    "times one": lambda side: scale(Stream(**side, layer=0, part="attn_out"), by=1.0),
}


@POSITIONS
@EVERY_KIND
def test_an_idle_edit_changes_no_bit_and_says_so(kind, positions):
    model, batch, side = of_kind(kind)
    conditions = {name: [edit(side)] for name, edit in IDLE.items()}
    got = run_each(model, batch, {**conditions, "clean": []}, donors={"same": batch}, positions=positions)
    clean = run(model, batch, positions=positions).logits
    for name in conditions:
        assert torch.equal(got[name].logits, clean), name
        assert any("landed and changed nothing" in note for note in got[name].notes), name
    assert torch.equal(got["clean"].logits, clean) and got["clean"].notes == ()


@POSITIONS
def test_a_row_with_one_source_made_uniform_changes_no_bit(positions):
    first = torch.zeros_like(BATCH.valid)
    first[:, 0] = True
    edit = uniform(Edges(layer=1, dest="start"))
    got = run_each(MODEL, BATCH.with_roles(start=first), {"one source": [edit]}, positions=positions)
    assert torch.equal(got["one source"].logits, run(MODEL, BATCH, positions=positions).logits)


IN_THE_MIDDLE = [Z, Heads(layer=1, pos="last", part="q"), Stream(layer=0, pos="last", part="mlp_out")]


@POSITIONS
@pytest.mark.parametrize("where", IN_THE_MIDDLE, ids=str)
def test_of_a_donor_that_differs_in_some_examples_the_others_keep_every_bit(where, positions):
    half = torch.arange(len(BATCH)) % 2 == 0
    donor = replace(BATCH, tokens=torch.where(half[:, None], BATCH.tokens, (BATCH.tokens + 1) % 16))
    edit = patch(where, donor="half", align="position")
    got = run_each(MODEL, BATCH, {"half": [edit]}, donors={"half": donor}, positions=positions)["half"].logits
    clean = run(MODEL, BATCH, positions=positions).logits
    assert torch.equal(got[half], clean[half])
    assert not (got[~half] == clean[~half]).flatten(1).all(1).any()


def with_places(batch: Batch, **places: int) -> Batch:
    roles = {name: torch.zeros_like(batch.valid) for name in places}
    for name, at in places.items():
        roles[name][:, at] = True
    return batch.with_roles(**roles)


UNREAD_PLACES = {
    "later than what is read": lambda: scale(Stream(layer=0, pos="end", part="resid_pre"), by=2.0),
    "a row of the last layer": lambda: cut(Edges(layer=1, dest="third", source="second")),
    "a query of the last layer": lambda: zero(Heads(layer=1, pos="third", part="q")),
    "an MLP of the last layer": lambda: zero(Stream(layer=1, pos="third", part="mlp_out")),
    "a key after what is read": lambda: zero(Heads(layer=1, pos="end", part="k")),
}


@pytest.mark.parametrize("cell", UNREAD_PLACES)
def test_a_cell_that_cannot_reach_what_is_read_is_clean_to_the_bit_and_noted(cell):
    edit, placed = UNREAD_PLACES[cell](), with_places(BATCH, second=1, third=2, sixth=5, end=8)
    labels = torch.full_like(BATCH.tokens, UNREAD)
    labels[:, 5] = 3
    batch = replace(placed, labels=labels)
    reaching = cut(Edges(layer=1, dest="sixth", source="second"))
    got = run_each(MODEL, batch, {"cell": [edit], "other": [reaching]}, positions="read")
    assert torch.equal(got["cell"].logits, run(MODEL, batch, positions="read").logits)
    assert [note for note in got["cell"].notes if "cannot reach what is read in 12 of 12 examples" in note]
    assert not any("cannot reach" in note for note in got["other"].notes)
    assert not torch.equal(got["other"].logits, got["cell"].logits)
    # With all positions asked for, the same cell is run: it changes the logits that nobody reads.
    everywhere_asked = run_each(MODEL, batch, {"cell": [edit]}, positions="all")["cell"].logits
    want = run(MODEL, batch, [edit]).logits
    assert off(everywhere_asked, want) <= 1e-10 and not torch.equal(want, run(MODEL, batch).logits)


# Hooks and weights that are not ours


def halving(*arguments):
    """The output of a hook or of a forward hook, halved."""
    return arguments[-1] * 0.5 if isinstance(arguments[-1], torch.Tensor) else None


def through_hook_point(model):
    handle = model.blocks[1].hook_mlp_out.register_forward_hook(halving)
    return handle.remove


def through_a_module(model):
    handle = model.blocks[0].mlp.register_forward_hook(halving)
    return handle.remove


def through_a_pre_hook(model):
    handle = model.blocks[0].mlp.register_forward_pre_hook(lambda module, given: (given[0] * 0.5,))
    return handle.remove


def through_another_forward(model):
    mlp = model.blocks[0].mlp
    before = mlp.forward
    mlp.forward = lambda x: before(x) * 0.5
    return lambda: delattr(mlp, "forward")


def through_every_module(model):
    handle = everywhere.register_module_forward_hook(
        lambda module, given, out: out * 0.5 if module is model.blocks[0].mlp else None
    )
    return handle.remove


HOOKS = [through_hook_point, through_a_module, through_a_pre_hook, through_another_forward, through_every_module]
EVERY_HOOK = pytest.mark.parametrize("put", HOOKS, ids=lambda put: put.__name__)


@EVERY_HOOK
def test_a_users_hook_put_between_two_calls_acts_and_the_engine_says_hooks(put):
    model = small()
    before = run_each(model, BATCH, SOME)
    take_away = put(model)
    try:
        got = run_each(model, BATCH, SOME)
        for label, listed in SOME.items():
            assert torch.equal(got[label].logits, run(model, BATCH, listed).logits)
            assert off(got[label].logits, before[label].logits) > 1e-3
            assert got[label].engine.startswith("hooks")
    finally:
        take_away()
    after = run_each(model, BATCH, SOME)
    assert all(torch.equal(after[label].logits, before[label].logits) for label in SOME)
    assert {one.engine for one in (*before.values(), *after.values())} == {"rows"}


def test_a_users_hook_acts_on_what_is_measured():
    model = small()
    before = measure_each(model, BATCH, SOME, ["log_prob"])
    through_a_module(model)
    got = measure_each(model, BATCH, SOME, ["log_prob"])
    assert all(off(got[label].values["log_prob"], before[label].values["log_prob"]) > 1e-4 for label in SOME)
    assert all(got[label].engine.startswith("hooks") for label in SOME)


def in_place(model):
    with torch.no_grad():
        model.blocks[0].attn.W_V.mul_(0.5)


def behind_autograds_back(model):
    model.blocks[0].attn.W_V.data.mul_(0.5)


def by_a_new_parameter(model):
    model.blocks[0].attn.W_V = torch.nn.Parameter(model.blocks[0].attn.W_V.detach() * 0.5)


def from_a_state(model):
    model.load_state_dict({name: value * 0.5 for name, value in model.state_dict().items()})


def in_another_precision(model):
    model.to(torch.float32)


CHANGES = [in_place, behind_autograds_back, by_a_new_parameter, from_a_state, in_another_precision]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_weights_changed_between_two_calls_are_the_ones_used(change):
    model = small()
    before = run_each(model, BATCH, SOME)
    change(model)
    after = run_each(model, BATCH, SOME)
    for label, listed in SOME.items():
        want = run(model, BATCH, listed).logits
        assert after[label].logits.dtype == want.dtype and off(after[label].logits, want) < 5e-6
        assert not torch.equal(after[label].logits.double(), before[label].logits)


def test_a_batch_and_a_donor_changed_in_place_are_read_anew():
    tokens, theirs = BATCH.tokens.clone(), CORRUPT.tokens.clone()
    batch, donors = replace(BATCH, tokens=tokens), {"corrupt": replace(CORRUPT, tokens=theirs)}
    conditions = {"patched": [patch(Z, donor="corrupt", align="role")], "cut": [cut(ANSWER)]}
    run_each(MODEL, batch, conditions, donors=donors)
    tokens[:, 1], theirs[:, 3] = 2, 5
    after = run_each(MODEL, batch, conditions, donors=donors)
    assert off(after["cut"].logits, run(MODEL, batch, [cut(ANSWER)]).logits) < 1e-10
    want = run(MODEL, batch, conditions["patched"], donors=donors).logits
    assert off(after["patched"].logits, want) < 1e-10


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_the_model_is_kept_and_nothing_is_left_on_it(training):
    model = small().train(training)
    run_each(model, BATCH, SOME)
    measure_each(model, BATCH, SOME)
    assert all(module.training == training for module in model.modules()) and not all_hooks(model)
    assert all(value.requires_grad and value.grad is None for value in model.parameters())


def test_logits_hold_no_graph():
    with torch.enable_grad():
        assert not any(one.logits.requires_grad for one in run_each(MODEL, BATCH, SOME).values())


# The same examples


LACKING = with_role(with_role(BATCH, "here", list(range(9))), "there", list(range(4, 12)))
PARTLY = {
    "here": [cut(Edges(layer=1, dest="last", source="here"))],
    "there": [scale(Heads(layer=0, pos="there", part="z"), by=2.0)],
    "nowhere special": [zero(Stream(layer=0, pos="last", part="mlp_out"))],
    "nothing": [],
}


@pytest.mark.parametrize("how", ["auto", "hooks"])
def test_what_one_condition_lacks_all_leave_out(how):
    got = run_each(MODEL, LACKING, PARTLY, on_missing="skip", engine=how)
    measured = measure_each(MODEL, LACKING, PARTLY, on_missing="skip", engine=how)
    for label, listed in PARTLY.items():
        for one in (got[label], measured[label]):
            assert one.kept.tolist() == [4, 5, 6, 7, 8]
            assert set(one.skipped) == {0, 1, 2, 3, 9, 10, 11}
            assert "role 'there' is empty" in one.skipped[0] and "role 'here' is empty" in one.skipped[11]
        left_out = dict.fromkeys(got[label].skipped, "not shared")
        want = run(MODEL, LACKING, listed, left_out=left_out, on_missing="skip").logits
        assert off(got[label].logits, want) < 1e-10
        assert len(measured[label].values["accuracy"]) == 5


def test_examples_left_out_by_the_caller_keep_their_reason():
    got = run_each(MODEL, LACKING, PARTLY, on_missing="skip", left_out={0: "too long", 5: "too odd"})
    for one in got.values():
        assert one.kept.tolist() == [4, 6, 7, 8]
        assert one.skipped[0] == "too long" and one.skipped[5] == "too odd"
    said = run_each(MODEL, LACKING, {"there": PARTLY["there"]}, left_out=dict.fromkeys(range(4), "lacks it"))
    assert said["there"].kept.tolist() == list(range(4, 12))


def test_no_condition_gives_nothing():
    assert run_each(MODEL, BATCH, {}) == {} and measure_each(MODEL, BATCH, {}) == {}


@pytest.mark.parametrize("chunk_size", [1, 5, 12, 100])
def test_resampled_and_shuffled_values_are_drawn_before_chunks_are_cut(chunk_size):
    conditions = {
        "shuffled": [shuffle(ROW, seed=3)],
        "resampled": [resample(Z, donor="corrupt", seed=2)],
        "mean": [mean(Z, donor="corrupt")],
    }
    got = run_each(MODEL, BATCH, conditions, donors=DONOR, chunk_size=chunk_size)
    for label, listed in conditions.items():
        donors = {} if label == "shuffled" else DONOR
        assert off(got[label].logits, run(MODEL, BATCH, listed, donors=donors).logits) < 1e-10


@POSITIONS
@pytest.mark.parametrize("chunk_size", [1, 4, 100])
def test_an_edit_that_is_read_in_some_examples_alone_is_noted_alike_whatever_the_chunks(chunk_size, positions):
    read = torch.tensor([n in (0, 5, 11) for n in range(12)])[:, None]
    last, other = BATCH.roles["last"], torch.arange(9).expand(12, -1) == 3
    batch = BATCH.with_roles(one=torch.where(read, last, other))
    where = Stream(layer=1, pos="one", part="attn_out")
    conditions = {
        "frozen": [freeze(where)],
        "patched by the same": [patch(where, donor="same", align="position")],
        "again": [patch(where, donor="same", align="position")],
        "changed": [scale(where, by=2.0)],
        "changed where it is not read": [patch(where, donor="other", align="position")],
    }
    tokens = batch.tokens.clone()
    tokens[1:5] = tokens[1:5].roll(1, 1)
    donors = {"same": batch, "other": replace(batch, tokens=tokens)}
    got = run_each(MODEL, batch, conditions, donors=donors, positions=positions, chunk_size=chunk_size)
    # With positions="read" the last layer has no other rows in which anything could change.
    idle = {"frozen", "patched by the same", "again"}
    idle |= {"changed where it is not read"} if positions == "read" else set()
    for label, listed in conditions.items():
        want = run(MODEL, batch, listed, donors=named(donors, listed), positions=positions)
        assert got[label].notes == want.notes, label
        assert any("changed nothing" in note for note in want.notes) == (label in idle)


@pytest.mark.parametrize("chunk_size", [5, 100])
def test_runs_do_not_share_memory_that_a_reader_may_change(chunk_size):
    unread = [cut(Edges(layer=1, dest="other", source="other"))]
    listed = {"one": [], "two": [], "unread": unread, "unread too": unread, "cut": [cut(ANSWER)]}
    listed |= {"same cut": [cut(ANSWER)], "next to it": [cut(Edges(layer=1, dest="last", source="other"))]}
    for label in listed:
        got = run_each(MODEL, BATCH, listed, positions="read", chunk_size=chunk_size)
        assert {one.engine for one in got.values()} == {"rows"}
        kept = {other: one.logits.clone() for other, one in got.items()}
        got[label].logits.fill_(7.0)
        assert all(torch.equal(got[other].logits, kept[other]) for other in listed if other != label)


def test_logits_can_be_differentiated_by_what_is_made_of_them():
    for one in run_each(MODEL, BATCH, SOME, positions="read").values():
        weight = torch.ones(16, dtype=one.logits.dtype, requires_grad=True)
        (one.logits * weight).sum().backward()
        assert torch.equal(weight.grad, one.logits.sum((0, 1)))


# What is measured


def test_a_condition_whose_label_is_empty_is_measured_as_what_it_is():
    metrics = ["kl_to_clean", "log_prob"]
    got = measure_each(MODEL, BATCH, {"": [cut(ANSWER)], "cut": [cut(ANSWER)], "clean": []}, metrics)
    assert torch.equal(got[""].values["kl_to_clean"], got["cut"].values["kl_to_clean"])
    assert got["cut"].values["kl_to_clean"].max() > 1e-6 and not got["clean"].values["kl_to_clean"].any()
    assert got["clean"].same and not got[""].same and not got["cut"].same


def test_a_metric_that_is_not_there_is_refused():
    with pytest.raises(KeyError, match="acuracy"):
        measure_each(MODEL, BATCH, SOME, ["acuracy"])


# What is refused, with the condition's label


FAULTS = {
    "a row left empty": (EmptyRow, [cut(Edges(layer=1, dest="last"))], "no visible source is left"),
    "an unknown role": (KeyError, [cut(Edges(layer=1, dest="last", source="anwser"))], "anwser"),
    "an unknown layer": (KeyError, [cut(Edges(layer=2, dest="last", source="answer"))], "layer 2"),
    "an unknown head": (KeyError, [cut(Edges(layer=1, head=7, dest="last", source="answer"))], "head 7"),
    "an unknown part": (KeyError, [zero(Heads(layer=0, part="z", stack="encoder"))], "encoder"),
    "an unknown donor": (KeyError, [patch(Z, donor="corupt", align="role")], "corupt"),
    "an unknown site": (KeyError, [custom(("reslut", 0), halving)], "reslut"),
    "a list that contradicts itself": (ValueError, [scale(ANSWER, by=2), cut(ANSWER)], "would undo"),
    "a path beside what it is measured against": (
        ValueError,
        [path(zero, Z, Heads(layer=1, pos="last", part="q")), zero(Stream(layer=0, part="attn_out"))],
        "measured against the clean run",
    ),
    "a shape of its own": (ValueError, [custom(("z", 0), lambda z: z[:, :1])], "expects"),
    "no tensor": (TypeError, [custom(("z", 0), lambda z: None)], "must return a tensor"),
    "not finite": (ValueError, [scale(Stream(layer=1, part="resid_post"), by=1e308)] * 2, "NaN or infinity"),
}
EVERY_FAULT = pytest.mark.parametrize("fault", FAULTS)
ENGINES = pytest.mark.parametrize("how", ["auto", "hooks"])


@ENGINES
@EVERY_FAULT
def test_a_fault_is_refused_with_what_is_wrong_and_leaves_nothing_behind(fault, how):
    model, (error, listed, said) = small("none"), FAULTS[fault]
    model.train()
    for call in (run_each, measure_each):
        with pytest.raises(error, match=said):
            call(model, BATCH, {"the faulty one": listed}, engine=how)
    assert not all_hooks(model) and all(module.training for module in model.modules())
    assert all(value.requires_grad and value.grad is None for value in model.parameters())
    assert torch.is_grad_enabled()


@ENGINES
@EVERY_FAULT
def test_of_several_conditions_the_faulty_one_is_named(fault, how):
    error, listed, said = FAULTS[fault]
    for call in (run_each, measure_each):
        with pytest.raises(error, match=said) as raised:
            call(small("none"), BATCH, {"a good one": [cut(OTHER)], "the faulty one": listed}, engine=how)
        words = str(raised.value)
        assert "the faulty one" in words and "a good one" not in words


@ENGINES
def test_missing_examples_are_refused_with_the_condition_that_lacks_them(how):
    for call in (run_each, measure_each):
        with pytest.raises(MissingExamples, match="role 'there' is empty in 4 of 12 examples") as raised:
            call(MODEL, LACKING, {"fine": [cut(ANSWER)], "lacking": PARTLY["there"]}, engine=how)
        assert "lacking" in str(raised.value)


@ENGINES
def test_conditions_that_leave_no_example_together_are_refused(how):
    batch = with_role(with_role(BATCH, "here", [0, 1, 2]), "there", [3, 4])
    with pytest.raises(MissingExamples):
        run_each(MODEL, batch, {"there": PARTLY["there"]}, engine=how)
    with pytest.raises(MissingExamples, match="no example is left"):
        run_each(MODEL, batch, PARTLY, on_missing="skip", engine=how)


def test_an_edit_that_a_users_hook_throws_away_is_inert():
    model = small()
    clean = model.run_with_cache(BATCH.tokens)[1]["blocks.1.attn.hook_pattern"].detach()
    handle = model.blocks[1].attn.hook_pattern.register_forward_hook(lambda module, given, out: clean)
    try:
        with pytest.raises(InertIntervention, match="throws the edit away"):
            run(model, BATCH, [cut(ANSWER)])
        with pytest.raises(InertIntervention, match="thrown"):
            run_each(model, BATCH, {"clean": [], "thrown": [cut(ANSWER)]})
        assert list(all_hooks(model)) == ["blocks.1.attn.hook_pattern"]
    finally:
        handle.remove()


WRONG = {
    "a list": ([cut(ANSWER)], {}, TypeError),
    "a list of lists": ([[cut(ANSWER)]], {}, TypeError),
    "a list of pairs": ([("cut", [cut(ANSWER)])], {}, TypeError),
    "a condition that is no list": ({"cut": cut(ANSWER)}, {}, TypeError),
    "a condition of words": ({"cut": ["cut"]}, {}, TypeError),
    "an engine there is not": (SOME, {"engine": "fast"}, ValueError),
    "a chunk of nothing": (SOME, {"chunk_size": 0}, ValueError),
    "positions there are not": (SOME, {"positions": "some"}, ValueError),
    "a choice there is not": (SOME, {"on_missing": "ignore"}, ValueError),
    "a donor nobody names": (SOME, {"donors": DONOR}, TypeError),
    "donors without names": ({"p": [patch(Z, donor="corrupt", align="role")]}, {"donors": CORRUPT}, TypeError),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_an_argument_that_means_nothing_is_refused(wrong):
    conditions, more, error = WRONG[wrong]
    with pytest.raises(error):
        run_each(MODEL, BATCH, conditions, **more)
    if "positions" not in more:
        with pytest.raises(error):
            measure_each(MODEL, BATCH, conditions, **more)


def test_a_metric_that_is_a_function_is_refused_in_words():
    with pytest.raises(TypeError, match="metrics come by name, as 'accuracy', not as a function"):
        measure_each(MODEL, BATCH, SOME, [small])


def test_no_model_and_no_batch_are_refused():
    with pytest.raises(TypeError, match="no model of this workbench"):
        run_each(torch.nn.Linear(2, 2), BATCH, SOME)
    with pytest.raises(TypeError, match="make it a Batch"):
        run_each(MODEL, BATCH.tokens, SOME)


# Which path is taken


BY_NAME = {
    "cut": [cut(ANSWER)],
    "keep only": [keep_only(ANSWER)],
    "uniform": [uniform(ROW)],
    "shuffle": [shuffle(ROW, seed=1)],
    "scale": [scale(ANSWER, by=0.5)],
    "zero after softmax": [zero(ANSWER)],
    "patch of weights": [patch(ANSWER, donor="corrupt", align="role")],
    "freeze beside a change": [zero(Z), freeze(ROW)],
    "one head": [cut(Edges(layer=1, head=1, dest="last", source="answer"))],
    "emptied": [cut(ROW, empty="no-update")],
    "to itself": [cut(ROW, empty="self")],
    **{f"zero of {part}": [zero(Heads(layer=1, part=part, pos="last"))] for part in ("q", "k", "v", "z", "result")},
    **{f"scale of {part}": [scale(Stream(layer=0, part=part, pos="last"), by=2.0)]
       for part in ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post")},
    "mean": [mean(Z, donor="corrupt")],
    "resample": [resample(Z, donor="corrupt", seed=1)],
    "patch": [patch(Z, donor="corrupt", align="role")],
    "add": [add(Z, donor="corrupt", align="role")],
    "two layers": [zero(Z), cut(ANSWER)],
}  # fmt: skip


@POSITIONS
def test_all_operations_by_name_equal_run_in_one_call(positions):
    got = run_each(MODEL, BATCH, BY_NAME, donors=DONOR, positions=positions)
    for label, listed in BY_NAME.items():
        donors = DONOR if any(hasattr(one.what, "donor") for one in listed) else {}
        want = run(MODEL, BATCH, listed, donors=donors, positions=positions)
        assert off(got[label].logits, want.logits) < 1e-10, label
        assert set(got[label].notes) == set(want.notes), label


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_own_models_take_the_fast_path_for_operations_by_name(dtype):
    got = run_each(small(dtype=dtype), BATCH, BY_NAME, donors=DONOR)
    assert {label: one.engine for label, one in got.items()} == dict.fromkeys(BY_NAME, "rows")
    forced = run_each(small(dtype=dtype), BATCH, BY_NAME, donors=DONOR, engine="hooks")
    assert all(one.engine.startswith("hooks: ") for one in forced.values())


def test_the_plain_path_says_why():
    conditions = {"cut": [cut(ANSWER)], "custom": [custom(("z", 0), halving)]}
    got = run_each(MODEL, BATCH, conditions)
    assert got["cut"].engine == "rows" and got["custom"].engine.startswith("hooks: ")
    assert "custom" in got["custom"].engine


def test_a_layer_with_a_window_that_hides_everything_but_itself_is_exact():
    model = small(masks=[Mask(window=1), Mask()])
    conditions = {"v": [scale(Heads(layer=0, pos="answer", part="v"), by=3.0)], "cut": [cut(ANSWER)]}
    for label, one in run_each(model, BATCH, conditions, positions="read").items():
        assert off(one.logits, run(model, BATCH, conditions[label], positions="read").logits) < 1e-10


def test_an_explanation_names_each_condition_and_runs_nothing():
    model = small()
    said = str(explain(model, BATCH, SOME))
    assert all(label in said for label in SOME) and not all_hooks(model)
