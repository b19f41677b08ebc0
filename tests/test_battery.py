"""Every behaviour of the battery, on every kind of model; and for each, a tool that gets it wrong and is found out."""

import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

import workbench
from analyses.behaviours import BEHAVIOURS
from analyses.tools import gpt2
from analyses.tools.ours import Ours
from analyses.tools.pair import Pair
from analyses.tools.protocol import LAYERS, LENGTH, PAST, Unoffered, feature, hidden
from analyses.tools.wrapped import Wrapped
from workbench import Batch, Edges, Heads, Mask, custom, record, run, uniform, zero
from workbench.sites import SITES

BY_ID = {one.id: one for one in BEHAVIOURS}
FAMILIES = {"H": 10, "M": 12, "N": 10, "R": 12, "P": 4}
IDS = [f"{letter}{number}" for letter, count in FAMILIES.items() for number in range(1, count + 1)]

KINDS: dict[str, Callable[[], Ours]] = {
    f"decoder, {norm} norm, {heads} head{'s' * (heads > 1)}": lambda norm=norm, heads=heads: Ours(norm, heads)
    for norm in ("post", "pre", "none")
    for heads in (1, 3)
}
"""Kind of model → what makes a tool around a fresh one."""
BOTH_WAYS = {"masks": [Mask(causal=False)], "reads": torch.ones_like(PAST)}
KINDS |= {
    "encoder": lambda: Ours("post", 3, **BOTH_WAYS),
    "decoder, sinusoidal": lambda: Ours("post", 3, positions="sinusoidal"),
    "decoder, relative": lambda: Ours("pre", 3, positions="relative"),
    "decoder, rotary": lambda: Ours("none", 3, positions="rotary"),
    "decoder, window": lambda: Ours("post", 3, masks=[Mask(window=7)], reads=PAST.triu(-6)),
    "decoder, grouped queries": lambda: Ours("pre", 4, n_kv_heads=2),
    "encoder–decoder": lambda: Pair("post", 3),
    "gpt2, wrapped": lambda: Wrapped(gpt2.gpt2),
}

NOTHING_HIDDEN = "offers no hidden source: every row reads every source"
UNOFFERED = {
    ("M1", "encoder"): NOTHING_HIDDEN,
    ("M10", "encoder"): NOTHING_HIDDEN,
    ("M11", "encoder"): NOTHING_HIDDEN,
    ("M12", "encoder"): "offers no decoder: its rows read what comes after them",
    ("R11", "encoder–decoder"): "offers no top source in one part of a model with several",
}
"""What does not apply to a kind, and why; all else must hold."""

OF_OTHER_FAMILIES = ("N6", "N7", "N8", "N9")
"""Behaviours of how models of other libraries are taken in, in which our own kinds take no part."""

OF_NO_MODEL = ("R5", "R6", "R8", "R12", "P1", "P2", "P3", "P4")
"""Behaviours of numbers, tables and pictures, in which no model takes part."""


def test_the_battery_has_every_behaviour_once_and_in_order():
    assert [one.id for one in BEHAVIOURS] == IDS
    assert all(one.situation and one.right for one in BEHAVIOURS)


@pytest.mark.filterwarnings("ignore::UserWarning:transformer_lens", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [name for name in IDS if name not in (*OF_NO_MODEL, *OF_OTHER_FAMILIES)])
def test_the_behaviour_holds(name, kind):
    if (name, kind) in UNOFFERED:
        with pytest.raises(Unoffered, match=UNOFFERED[name, kind]):
            BY_ID[name].check(KINDS[kind]())
    else:
        BY_ID[name].check(KINDS[kind]())


@pytest.mark.filterwarnings("ignore::UserWarning:transformer_lens", "ignore::FutureWarning")
@pytest.mark.parametrize("name", OF_OTHER_FAMILIES)
def test_the_behaviour_holds_of_other_families(name):
    BY_ID[name].check(Ours())


@pytest.mark.parametrize("kind", KINDS)
def test_a_tool_says_what_its_model_reads(kind):
    """What a tool says beforehand, by which the checks judge, is where its clean pattern has weight."""
    tool = KINDS[kind]()
    tokens = torch.arange(LENGTH)[None]
    for layer in range(LAYERS):
        weights = tool.record(Batch(tokens, tokens), [("pattern", layer)])["pattern", layer]
        assert torch.equal((weights > 0).all(1)[0], getattr(tool, "reads", PAST))


def test_a_model_that_hides_nothing_is_said_to():
    with pytest.raises(Unoffered, match=NOTHING_HIDDEN):
        hidden(KINDS["encoder"]())
    assert torch.equal(hidden(Ours()), ~PAST)


@pytest.mark.parametrize("name", OF_NO_MODEL)
def test_the_behaviour_holds_where_no_model_takes_part(name):
    BY_ID[name].check(Ours())


def test_a_feature_that_a_tool_lacks_is_said():
    with pytest.raises(Unoffered, match="offers no crystal ball"):
        feature(Ours(), "foretold", "crystal ball")


# Faulty tools


def faulty(**methods):
    """Our tool with some of its methods replaced, on every fresh model too."""
    return type("Faulty", (Ours,), methods)


def always(edits_of):
    """A tool that makes these edits in every run and recording, before those asked for."""
    return faulty(
        run=lambda self, batch, edits=(), **more: Ours.run(self, batch, [*edits_of(self), *edits], **more),
        record=lambda self, batch, places, edits=(), **more: Ours.record(
            self, batch, places, [*edits_of(self), *edits], **more
        ),
    )


def each_layer(site, change):
    return lambda self: [custom((site, layer), change) for layer in range(LAYERS)]


def answered(act, otherwise):
    """What `act` gives, or, where it raises, what `otherwise` gives."""
    try:
        return act()
    except Exception as error:
        return otherwise(error)


def silent(self, batch, edits=(), **more):
    return answered(lambda: Ours.run(self, batch, edits, **more), lambda _: self.module(batch.tokens))


def raising_another(self, batch, edits=(), **more):
    def other(error):
        raise RuntimeError("it did not work") from error

    return answered(lambda: Ours.run(self, batch, edits, **more), other)


def leaking(self, batch, edits=(), **more):
    def leak(error):
        self.module.blocks[0].register_forward_hook(lambda _m, _i, out: out * 1.5)
        raise error

    return answered(lambda: Ours.run(self, batch, edits, **more), leak)


def forgetful(self, batch, places, edits=(), **more):
    values = Ours.record(self, batch, places, edits, **more)
    self.module.reset_hooks()
    return values


def lenient(self, batch, places, edits=(), **more):
    return Ours.record(self, batch, [place for place in places if place in self.places], edits, **more)


def backward_hook_left(self, batch, places, of):
    got = Ours.gradients(self, batch, places, of)
    self.module.blocks[0].register_full_backward_hook(lambda *_: None)
    return got


def live(self, batch, places, edits=(), **more):
    """A record of the tensors themselves: the models' hooks are hung on, and the tensor that passes is kept."""
    kept, handles = {}, []
    for place in places:
        point = self.module.hook_dict[SITES[place[0]].hook_name(place[1])]
        keep = lambda _m, _i, out, place=place: kept.__setitem__(place, out)  # noqa: E731
        handles.append(point.register_forward_hook(keep))
    Ours.run(self, batch, edits)
    for handle in handles:
        handle.remove()
    return kept


def over_everything(self, edges):
    """A uniform row that knows of no earlier cut."""
    level = lambda scores: torch.where(PAST, torch.zeros_like(scores), scores)  # noqa: E731
    return custom(("scores", edges.layer), level) if edges.dest else uniform(edges)


def broadcast(self, place, fn):
    def wide(value):
        out = fn(value)
        fits = out.ndim == value.ndim and all(a in (1, b) for a, b in zip(out.shape, value.shape, strict=True))
        return out.to(value.dtype).expand_as(value).clone() if fits else out

    return Ours.function(self, place, wide)


def finite(value):
    return value.clamp_min(-1e5)


def told_as_finite(self, batch, places, edits=(), **more):
    got = Ours.record(self, batch, places, edits, **more)
    return {place: finite(value) for place, value in got.items()}


def averaged(self, edges):
    return custom(("pattern", edges.layer), lambda weights: (PAST / LENGTH).expand_as(weights).clone())


def nothing_cut(self, edges, **_):
    return workbench.scale(edges, by=1.0)


def unnormalised(self, edges, **_):
    return zero(edges)


def no_update(self, edges, empty="no-update"):
    return workbench.cut(edges, empty=empty)


def value_removed(self, edges, **_):
    return zero(Heads(layer=edges.layer, pos="answer", part="v"))


def of_padding(self, batch, edits=(), **more):
    return Ours.run(self, replace(batch, valid=torch.ones_like(batch.valid)), edits, **more)


def same_edges(self, batch, edits=(), **more):
    """Every example is cut where any is."""
    every = {name: mask.any(0).expand_as(mask) for name, mask in batch.relations.items()}
    return Ours.run(self, replace(batch, relations=every), edits, **more)


def skipping(self, batch, edits=(), **more):
    return run(self.module, batch, list(edits), on_missing="skip").logits


def deaf(self, place, fn):
    act = torch.clone if place == ("mlp_post", 1) else fn
    return Ours.function(self, place, act)


def inexact(self, place, fn):
    return Ours.function(self, place, lambda value: fn(value) * (1 + 1e-6))


def sums_wrong(self, batch, places, edits=(), **more):
    got = dict(Ours.record(self, batch, places, edits, **more))
    return {place: value * 1.1 if place[0] == "resid_mid" else value for place, value in got.items()}


def in_its_mode(self, batch, edits=(), **more):
    return self.module(batch.tokens)


def evaluated_for_good(self, batch, edits=(), **more):
    self.module.eval()
    return Ours.run(self, batch, edits, **more)


def shows_nothing(self, model):
    return SimpleNamespace(record=lambda batch, places, edits=(): dict.fromkeys(places))


def takes_anything(self, model):
    """A tool around a model whose edits are thrown away."""
    return faulty(
        cut=nothing_cut,
        probe=lambda self: {("scores", layer): "live" for layer in range(LAYERS)},
    )()


def unproved(self, batch, edits=(), **more):
    """Runs without the proof that an edit landed."""
    return answered(lambda: Ours.run(self, batch, edits, **more), lambda _: self.module(batch.tokens))


def size_matters(self, batch, edits=(), **more):
    return Ours.run(self, batch, edits, **more) * (1 + len(batch) / 1000)


def noisy(self, batch, edits=(), **more):
    logits = Ours.run(self, batch, edits, **more)
    return logits + torch.rand_like(logits) * 1e-6


def softmax_in_half(self, batch, places, edits=(), **more):
    got = dict(Ours.record(self, batch, places, edits, **more))
    for name, layer in list(got):
        if name == "pattern" and ("scores", layer) in got:
            got[name, layer] = torch.softmax(got["scores", layer].bfloat16() * 1.01, -1)
    return got


def metric_in_half(self, logits, batch):
    return Ours.metric(self, logits, batch).to(logits.dtype)


def normal_interval(self, values):
    means = np.array([one.mean() for one in values])
    half = 1.96 * np.sqrt(means.mean() * (1 - means.mean()) / len(values[0]))
    return SimpleNamespace(low=means.mean() - half, high=means.mean() + half)


def only_those_that_ran(self, task, conditions, n):
    frame = Ours.study(self, task, conditions, n)
    return frame[frame["skipped"].isna()]


def uncorrected(self, frame, pairs):
    return Ours.tests(self, frame, pairs).assign(p_holm=lambda table: table["p"])


def families_of_one(self, frame, pairs):
    return pd.concat([Ours.tests(self, frame, [pair]) for pair in pairs], ignore_index=True)


def mean_by_position(self, batch, reference, layer, role):
    by_place = record(self.module, reference, [("z", layer)])["z", layer].mean(0)
    clean = record(self.module, batch, [("z", layer)])["z", layer]
    return {("z", layer): torch.where(batch.roles[role][..., None, None], by_place, clean)}


def own_donor(self, batch, layer, role, seed):
    return record(self.module, batch, [("z", layer)])["z", layer]


def another_seed(self, batch, layer, role, seed):
    self.calls = getattr(self, "calls", 0) + 1
    return Ours.resampled(self, batch, layer, role, self.calls)


def first_source(self, batch, layer, head, dest, seed):
    top, control = Ours.top_and_control(self, batch, layer, head, dest, seed)
    anywhere = torch.zeros_like(control)
    anywhere[:, -1] = top[:, -1].roll(1, -1)
    return top, anywhere


def as_numbers(self, frame):
    read = frame.apply(lambda column: pd.to_numeric(column, errors="coerce"))
    return {"CSV": read.to_csv(index=False)}


def square(self, pattern, sources, dests, **options):
    n = min(len(sources), len(dests))
    return Ours.grid(self, np.asarray(pattern)[:n, :n], sources[:n], dests[:n], **options)


def swapped_names(self, pattern, sources, dests, **options):
    figure = Ours.grid(self, pattern, sources, dests, **options)
    figure.axes[0].set(xlabel="key", ylabel="query")
    return figure


def triangle(self, pattern, sources, dests, **options):
    low = np.tril(np.ones(np.shape(pattern), dtype=bool))
    return Ours.grid(self, np.where(low, pattern, 0), sources, dests, visible=low, **options)


def every_label(self, pattern, sources, dests, **options):
    figure = Ours.grid(self, pattern, sources, dests, **options)
    figure.axes[0].set_xticks(range(len(sources)), sources)
    return figure


def blank(self, pattern, sources, dests, **options):
    figure = Figure()
    figure.subplots().pcolormesh(np.zeros((1, 1)))
    return figure


def without(kind):
    def fewer(self, figure):
        return {name: file for name, file in Ours.exported(self, figure).items() if name != kind}

    return fewer


def outlined(self, figure):
    files = dict(Ours.exported(self, figure))
    return files | {"svg": re.sub(rb"<text.*?</text>", b"<path/>", files["svg"], flags=re.S)}


def from_the_network(self, figure):
    return Ours.exported(self, figure) | {"html": b'<html><script src="https://cdn.example/plot.js"></script></html>'}


FAULTS = [
    ("H1", faulty(run=silent), "is accepted without an error"),
    ("H1", faulty(run=raising_another), "the caller gets RuntimeError"),
    ("H1", faulty(run=leaking), "not bit-equal"),
    ("H2", faulty(record=forgetful), "the hooks are others"),
    ("H3", faulty(record=lenient), "'patern' is accepted without an error"),
    ("H3", faulty(run=raising_another), "does not say 'patern'"),
    ("H4", faulty(matching=lambda self, batch, text: {}), "is accepted without an error"),
    ("H5", faulty(gradients=backward_hook_left), "a hook remains"),
    ("H6", faulty(record=live), "not bit-equal"),
    ("H7", faulty(uniform=over_everything), "the cut edge is not 0"),
    ("H8", faulty(function=broadcast), "returns one example at .* is accepted"),
    ("H8", faulty(run=raising_another), "the error does not say"),
    ("H9", faulty(run=leaking), "a hook remains"),
    ("H10", faulty(run=lambda self, batch, edits=(), **more: Ours.run(self, batch, edits)), "is accepted without"),
    ("M1", always(each_layer("scores", finite)), "on the future"),
    ("M2", faulty(cut=nothing_cut), "the cut weight is"),
    ("M2", faulty(cut=unnormalised), "w/.1 − w_cut"),
    ("M3", faulty(cut=no_update), "no error for a row without sources"),
    ("M4", faulty(cut=unnormalised), "differs by"),
    ("M4", faulty(run=silent), "is accepted without an error"),
    ("M5", faulty(zero=lambda self, edges: workbench.cut(edges)), "the row's sum"),
    ("M5", faulty(label=lambda self, edit: str(edit).replace(" after softmax", "")), "the label is"),
    ("M6", faulty(cut=value_removed), "the bias folded"),
    ("M7", faulty(run=of_padding), "padded left, clean"),
    ("M8", faulty(run=same_edges), "in the batch against alone"),
    ("M8", faulty(run=skipping), "an example without an edge is accepted"),
    ("M9", faulty(uniform=averaged), "visible sources"),
    ("M10", faulty(run=skipping), "that the causal mask hides is accepted"),
    ("M11", faulty(record=told_as_finite), "at masked positions"),
    ("M12", always(each_layer("scores", lambda value: value.clamp_min(-5.0))), "not bit-equal"),
    ("N1", faulty(function=deaf), "moves no logit"),
    ("N2", faulty(function=inexact), "not bit-equal"),
    ("N3", faulty(record=sums_wrong), "resid_mid and resid_pre"),
    ("N3", faulty(wrong_sum=lambda self: self), "no sum is accepted"),
    ("N4", faulty(run=in_its_mode), "two runs of a model in train mode"),
    ("N4", faulty(run=evaluated_for_good), "mode is another"),
    ("N5", faulty(ablate=lambda self, layer, head: zero(Heads(layer=layer, part="z"))), "beside head 0"),
    ("N6", faulty(adopt=shows_nothing), "the pattern of a fused attention is None"),
    ("N7", faulty(adopt=takes_anything), "gpt_neo is accepted"),
    ("N8", faulty(adopt=takes_anything), "scores that are inert is accepted"),
    ("N9", faulty(adopt=takes_anything), "discards with a warning is accepted"),
    ("N10", faulty(run=unproved), "in place of the cut one is accepted"),
    ("R1", faulty(run=size_matters), "logits of a batch of 1 and of 16"),
    ("R2", faulty(run=noisy), "the same run twice"),
    ("R3", faulty(record=softmax_in_half), "a softmax in float32"),
    ("R3", faulty(metric=metric_in_half), "a metric of bfloat16 logits is torch.bfloat16"),
    ("R4", faulty(run=raising_another), "the error does not say 'meta'"),
    ("R5", faulty(choose_device=lambda self, name: torch.device(name)), "a device whose logits are 1.01 times"),
    ("R6", faulty(interval=normal_interval), "100% of 10"),
    ("R7", faulty(study=only_those_that_ran), r"not \[9, 6, 3\]"),
    ("R8", faulty(tests=uncorrected), "not Holm's"),
    ("R8", faulty(tests=families_of_one), "the family's size is"),
    ("R9", faulty(role_mean=mean_by_position), "the mean over the role"),
    ("R10", faulty(resampled=own_donor), "its own donor"),
    ("R10", faulty(resampled=another_seed), "the same seed gives other donors"),
    ("R11", faulty(top_and_control=first_source), "classes of top and control|top source, or hidden"),
    ("R12", faulty(tables=as_numbers), "does not print the label '0.10'"),
    ("P1", faulty(grid=square), "another grid is drawn"),
    ("P1", faulty(grid=swapped_names), "the axes are"),
    ("P2", faulty(grid=triangle), "a cell is hidden"),
    ("P3", faulty(grid=every_label), "labels on an axis"),
    ("P3", faulty(grid=blank), "the largest weight is not drawn"),
    ("P4", faulty(exported=without("pdf")), "there are"),
    ("P4", faulty(exported=outlined), "is no text"),
    ("P4", faulty(exported=without("html")), "no HTML file"),
    ("P4", faulty(exported=from_the_network), "the page loads"),
]
"""Behaviour, a tool that gets it wrong, and what is said of it."""


@pytest.mark.parametrize(("name", "tool", "said"), FAULTS, ids=[f"{name}: {said}" for name, _, said in FAULTS])
def test_a_tool_that_gets_it_wrong_is_found_out(name, tool, said):
    with pytest.raises(AssertionError, match=said):
        BY_ID[name].check(tool())


def test_every_behaviour_has_a_tool_that_gets_it_wrong():
    assert {name for name, _, _ in FAULTS} == set(IDS)


def test_a_batch_of_the_cases_is_what_they_say():
    from analyses.behaviours.cases import batch_of

    batch = batch_of(16)
    assert isinstance(batch, Batch)
    assert (batch.roles["answer"].sum(1) == 1).all()
    assert batch.roles["answer"].float().argmax(1).unique().numel() > 1
    assert batch.edges("last", "answer").any(2).sum() == 16
    assert Edges(layer=0, dest="last", source="answer").layer == 0
