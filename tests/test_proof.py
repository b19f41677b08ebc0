"""Proof that an edit landed: a dead site, or a hook that throws the edit away, raises; it is never "no effect"."""

import pytest
import torch
from small import ANSWER, BATCH, CORRUPT, EVERY_MODEL, EVERY_SITE, KEYS, ROW, hook_of, named, small, spelt
from transformer_lens.hook_points import HookPoint

from workbench.interventions import (
    Edges,
    Heads,
    Stream,
    custom,
    cut,
    freeze,
    mean,
    patch,
    scale,
    shuffle,
    uniform,
    zero,
)
from workbench.models.attention import Attention
from workbench.running import InertIntervention, record, run
from workbench.sites import SITES


class DeadPoint(HookPoint):
    """A hook point that is heard, and whose answer is dropped."""

    def __call__(self, x):
        super().__call__(x.clone())
        return x


def with_dead(key, **more):
    """A model in which one site fires as it should and is not read."""
    model = small(**more)
    *path, name = SITES[key[0]].hook_name(key[1]).split(".")
    module = model
    for step in path:
        module = module[int(step)] if step.isdigit() else getattr(module, step)
    setattr(module, name, DeadPoint())
    model.setup()
    return model


def noise(value: torch.Tensor) -> torch.Tensor:
    """x + noise that varies along features and sources; a constant would be invisible to softmax and LayerNorm."""
    drawn = torch.randn(value.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    return value + drawn.to(value.dtype)


@EVERY_MODEL
@EVERY_SITE
def test_noise_at_every_site_moves_the_logits(norm, heads, key):
    model = small(norm, heads)
    moved = run(model, BATCH, [custom(spelt(key), noise)])
    clean = run(model, BATCH).logits
    assert (moved.logits - clean).abs().max() > 100 * 1e-15 * clean.abs().max()
    assert not moved.notes


@EVERY_MODEL
@EVERY_SITE
def test_the_identity_at_every_site_changes_no_bit_and_carries_a_note(norm, heads, key):
    model = small(norm, heads)
    got = run(model, BATCH, [custom(spelt(key), torch.clone)])
    assert torch.equal(got.logits, run(model, BATCH).logits)
    assert torch.equal(got.logits, model(BATCH.tokens))
    assert "changed nothing" in got.notes[0]


LOCATIONS: list = [Edges(layer=1)]
LOCATIONS += [Heads(layer=1, part=part) for part in ("q", "k", "v", "z", "result")]
LOCATIONS += [Stream(layer=1, part=part) for part in ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post")]


@pytest.mark.parametrize("positions", ["all", "read"])
@pytest.mark.parametrize("where", LOCATIONS, ids=str)
@EVERY_MODEL
def test_a_patch_from_the_same_run_and_an_idle_freeze_change_no_bit(norm, heads, where, positions):
    model = small(norm, heads, torch.float32)
    clean = run(model, BATCH, positions=positions).logits
    for one in (patch(where, donor="same", align="position"), freeze(where)):
        got = run(model, BATCH, [one], donors=named({"same": BATCH}, [one]), positions=positions)
        assert torch.equal(got.logits, clean)
        assert len(got.notes) == 1 and "changed nothing" in got.notes[0]


@EVERY_MODEL
@EVERY_SITE
def test_an_edit_of_a_site_that_is_not_read_raises(norm, heads, key):
    model = with_dead(key, norm=norm, heads=heads)
    assert torch.equal(run(model, BATCH).logits, run(small(norm, heads), BATCH).logits)
    with pytest.raises(InertIntervention, match=f"edit of {key[0]} did not reach"):
        run(model, BATCH, [custom(spelt(key), noise)])


class Deaf(Attention):
    """An attention that hears its score hook and computes its pattern from what stood before it."""

    def forward(self, dest, source, mask, at=None):
        kept = []
        self.hook_pattern.pre = self.hook_pattern.register_forward_pre_hook(lambda module, inputs: kept[0])
        handle = self.hook_attn_scores.register_forward_pre_hook(
            lambda module, inputs: kept.append(torch.softmax(inputs[0], -1))
        )
        try:
            return super().forward(dest, source, mask, at)
        finally:
            handle.remove()
            self.hook_pattern.pre.remove()


@pytest.mark.parametrize(
    "edit", [cut(ANSWER), uniform(ROW), scale(ANSWER, by=2), shuffle(ROW, seed=0), cut(ROW, empty="no-update")], ids=str
)
@EVERY_MODEL
def test_an_attention_whose_score_hook_is_inert_is_found_out(norm, heads, edit):
    model = small(norm, heads)
    model.blocks[1].attn.__class__ = Deaf
    assert torch.allclose(run(model, BATCH).logits, run(small(norm, heads), BATCH).logits, atol=1e-12)
    with pytest.raises(InertIntervention, match="did not reach pattern of layer 1"):
        run(model, BATCH, [edit])


def consumers(key):
    """The site behind each one that reads it first."""
    return {"embed": ("resid_pre", 0), "pos_embed": ("resid_pre", 0), "resid_pre": ("resid_mid", 1), "q": ("scores", 1),
            "k": ("scores", 1), "scores": ("pattern", 1), "v": ("z", 1), "pattern": ("z", 1), "z": ("attn_out", 1),
            "result": ("attn_out", 1), "attn_out": ("resid_mid", 1), "resid_mid": ("resid_post", 1),
            "mlp_pre": ("mlp_post", 1), "mlp_post": ("mlp_out", 1), "mlp_out": ("resid_post", 1)}[key[0]]  # fmt: skip


@pytest.mark.parametrize("key", KEYS[:-1], ids=lambda key: key[0])
def test_a_users_hook_downstream_that_throws_the_edit_away_raises(key):
    model = small()
    was = record(model, BATCH, [consumers(key)])[consumers(key)]
    hook_of(model, consumers(key)).add_hook(lambda value, hook: was[: len(value)].clone())
    assert torch.equal(run(model, BATCH).logits, run(small(), BATCH).logits)
    with pytest.raises(InertIntervention):
        run(model, BATCH, [custom(spelt(key), noise)])


@pytest.mark.parametrize("key", KEYS[:-1], ids=lambda key: key[0])
def test_a_users_hook_downstream_that_only_acts_on_the_edited_value_is_no_fault(key):
    model, twice = small(), small()
    run(model, BATCH)  # the first use, which checks the model as it was made
    hook_of(model, consumers(key)).add_hook(lambda value, hook: value * 1.5)
    got = run(model, BATCH, [custom(spelt(key), noise)]).logits
    both = [custom(spelt(key), noise), custom(consumers(key), lambda value: value * 1.5)]
    assert torch.allclose(got, run(twice, BATCH, both).logits, rtol=0, atol=1e-12)


def test_a_users_hook_that_holds_a_value_for_each_example_still_acts():
    model = small()
    run(model, BATCH)
    factors = torch.linspace(1, 2, len(BATCH)).double()[:, None, None, None]
    hook_of(model, ("z", 1)).add_hook(lambda value, hook: value * factors)
    want = run(small(), BATCH, [zero(ANSWER), custom(("z", 1), lambda value: value * factors)]).logits
    assert torch.allclose(run(model, BATCH, [zero(ANSWER)]).logits, want, rtol=0, atol=1e-12)


def test_a_site_that_does_not_fire_or_fires_twice_raises():
    model = small()
    model.blocks[1].attn.hook_q.__class__ = type("Silent", (HookPoint,), {"__call__": lambda self, x: x})
    with pytest.raises(InertIntervention, match="fired 0 times"):
        run(model, BATCH, [scale(Heads(layer=1, part="q"), by=2)])
    twice = small()
    call = lambda self, x: HookPoint.__call__(self, HookPoint.__call__(self, x))  # noqa: E731
    twice.blocks[1].attn.hook_q.__class__ = type("Twice", (HookPoint,), {"__call__": call})
    with pytest.raises(InertIntervention, match="fired 2 times"):
        run(twice, BATCH, [scale(Heads(layer=1, part="q"), by=2)])


def test_an_edit_lost_among_small_values_raises_too():
    """The same function with W_V / 10^12 and W_O × 10^12: dropping the edit of the pattern changes logits as before."""
    model = with_dead(("pattern", 1))
    with torch.no_grad():
        model.blocks[1].attn.W_V *= 1e-12
        model.blocks[1].attn.b_V *= 1e-12
        model.blocks[1].attn.W_O *= 1e12
    with pytest.raises(InertIntervention):
        run(model, BATCH, [zero(ANSWER)])


def test_wrong_tensors_of_the_right_shape_are_found_out():
    """d_vocab = d_model = d_head × heads: the scores hook is handed on, but another layer's pattern is consumed."""
    model = small(d_vocab=16, d_model=16)
    taken = record(model, BATCH, ["pattern"])["pattern", 0]
    hook_of(model, ("pattern", 1)).add_hook(lambda value, hook: taken[: len(value)])
    with pytest.raises(InertIntervention):
        run(model, BATCH, [cut(ANSWER)])


@pytest.mark.parametrize(
    ("edit", "note"),
    [
        (uniform(Edges(layer=1, dest="last", source="answer")), None),
        (uniform(Edges(layer=0, dest="start")), "changed nothing"),
        (scale(ANSWER, by=1.0), "changed nothing"),
        (cut(Edges(layer=1, dest="answer", source="match")), "cannot reach what is read"),
        (zero(Heads(layer=1, pos="match", part="z")), "cannot reach what is read"),
        (zero(Stream(layer=1, pos="digits", part="resid_post")), "cannot reach what is read"),
        (zero(Heads(layer=1, pos="match", part="k")), None),
        (zero(Heads(layer=0, pos="match", part="z")), None),
        (cut(ANSWER), None),
    ],
    ids=str,
)
@EVERY_MODEL
def test_an_edit_that_lands_and_cannot_matter_carries_a_note(norm, heads, edit, note):
    start = torch.zeros_like(BATCH.valid)
    start[:, 0] = True
    model, batch = small(norm, heads), BATCH.with_roles(start=start)
    got, clean = run(model, batch, [edit]), run(model, batch)
    same = torch.equal(got.logits[:, -1], clean.logits[:, -1])
    assert same == (note is not None)
    assert [note in one and str(edit) in one for one in got.notes] == ([True] if note else [])


@EVERY_MODEL
@pytest.mark.parametrize("part", ["q", "v", "z", "result"])
def test_other_heads_keep_their_z_when_one_is_ablated(norm, heads, part):
    model = small(norm, heads)
    edits = {
        "zero": zero(Heads(layer=1, head=0, part=part)),
        "mean": mean(Heads(layer=1, head=0, part=part), donor="d"),
    }
    for edit in edits.values():
        clean, edited = (
            record(model, BATCH, ["z"], e, donors=named({"d": CORRUPT}, e))["z", 1] for e in ([], [edit])
        )
        assert torch.equal(clean[:, :, 1:], edited[:, :, 1:])
        assert (part == "result") == torch.equal(clean[:, :, 0], edited[:, :, 0])


def test_dropout_is_off_and_the_mode_comes_back():
    model = small()
    for block in model.blocks:
        block.mlp.act = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Dropout(0.5))
    want = run(model.eval(), BATCH).logits
    model.train()
    model.blocks[0].mlp.act[1].eval()
    modes = [module.training for module in model.modules()]
    same = [run(model, BATCH, [freeze(Heads(layer=0, part="z"))]).logits for _ in range(2)]
    assert torch.equal(same[0], want) and torch.equal(same[1], want)
    assert [module.training for module in model.modules()] == modes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@EVERY_MODEL
@EVERY_SITE
def test_an_edit_that_lands_is_never_called_inert_in_low_precision(dtype, norm, heads, key):
    assert torch.isfinite(run(small(norm, heads, dtype), BATCH, [custom(spelt(key), noise)]).logits).all()
