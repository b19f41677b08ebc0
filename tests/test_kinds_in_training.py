"""Every kind of own model is proved, saved and trained: no dead site passes, dropout and smoothing are as written."""

import math
from dataclasses import replace

import pytest
import torch
from models_of import KINDS, batch_for, config_of, hook_name, keys_of, kind_of, pair_of
from test_proof import DeadPoint, noise

from tasks.lookup import Lookup
from workbench import checkpoints, fitting
from workbench.batch import UNREAD, Batch
from workbench.conditions import direct
from workbench.fitting import fit, fit_ensemble, fresh, training_batches
from workbench.interventions import Edges, Heads, Stream, custom, cut, freeze, patch
from workbench.liveness import probe
from workbench.models.dropout import dropping
from workbench.recipe import Recipe
from workbench.running import InertIntervention, record, run
from workbench.training import train, train_each

EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
PLACED = ("encoder", "global", "sinusoidal", "relative encoder", "no positions", "grouped", "patches",
          "encoder–decoder, pre", "encoder–decoder, none", "encoder–decoder, relative")  # fmt: skip
PLACES = [(kind, key) for kind in PLACED for key in keys_of(kind_of(kind)) if key[1] != 0]
PLACES += [("encoder–decoder", key) for key in keys_of(kind_of("encoder–decoder"))]
"""Kind and site: the last layer of each kind that has proofs of its own, and every layer of a pair."""

EVERY_PLACE = pytest.mark.parametrize(("kind", "key"), PLACES, ids=str)
CPU = torch.device("cpu")


def spelt(key):
    return key[0] if key[1] is None else key


# Proof


def with_dead(kind, key):
    """A model in which one site fires as it should and is not read."""
    model = kind_of(kind)
    *path, name = hook_name(key).split(".")
    module = model
    for step in path:
        module = module[int(step)] if step.isdigit() else getattr(module, step)
    setattr(module, name, DeadPoint())
    model.setup()
    return model


@EVERY_PLACE
def test_noise_at_a_site_moves_the_logits_and_the_identity_no_bit(kind, key):
    model, batch = kind_of(kind), batch_for(KINDS[kind], "right")
    clean = run(model, batch).logits
    moved = run(model, batch, [custom(spelt(key), noise)])
    assert (moved.logits - clean).abs().max() > 1e-13 * clean.abs().max() and not moved.notes
    same = run(model, batch, [custom(spelt(key), torch.clone)])
    assert torch.equal(same.logits, clean) and "changed nothing" in same.notes[0]


@EVERY_PLACE
def test_an_edit_of_a_site_that_is_not_read_raises(kind, key):
    model, batch = with_dead(kind, key), batch_for(KINDS[kind], "right")
    assert torch.equal(run(model, batch).logits, run(kind_of(kind), batch).logits)
    with pytest.raises(InertIntervention, match=f"edit of {key[0]} did not reach"):
        run(model, batch, [custom(spelt(key), noise)])


def test_the_places_are_those_of_every_part_and_layer():
    two_stacks = [key for kind, key in PLACES if kind == "encoder–decoder"]
    assert len(two_stacks) == 2 * (2 + 2 * 14) + 2 * 9
    assert {name.rpartition(".")[0] for name, _ in two_stacks} == {"encoder", "decoder", "cross"}
    without = [name for kind, (name, _) in PLACES if kind == "no positions"]
    assert not {"pos_embed", "mlp_out", "mlp_pre"} & set(without) and len(without) == 1 + 11


@pytest.mark.parametrize("kind", ["patches", "relative", "encoder–decoder", "encoder–decoder, none"])
def test_probing_finds_every_site_of_every_part_live(kind):
    model = kind_of(kind)
    found = probe(model)
    assert {one.status for one in found if (one.site, one.layer) in keys_of(model)} == {"live"}
    assert {one.site.rpartition(".")[0] for one in found} == set(model.parts)


@pytest.mark.parametrize("positions", ["all", "read"])
@pytest.mark.parametrize("stack", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("encoder–decoder")])
def test_a_patch_from_the_same_run_and_an_idle_freeze_change_no_bit(kind, stack, positions):
    model, batch = kind_of(kind), batch_for(KINDS[kind], "left")
    side = {"kind": "cross"} if stack == "cross" else {"stack": stack}
    clean = run(model, batch, positions=positions).logits
    for where in (Edges(layer=1, **side), Heads(layer=1, part="k", **side), Stream(layer=1, part="resid_mid", **side)):
        for one, donors in ((patch(where, donor="same", align="position"), {"same": batch}), (freeze(where), {})):
            got = run(model, batch, [one], donors=donors, positions=positions)
            assert torch.equal(got.logits, clean) and "changed nothing" in got.notes[0]


def test_a_direct_effect_in_a_decoder_without_mlps_holds_none():
    model, batch = kind_of("encoder–decoder, pre"), batch_for(KINDS["encoder–decoder, pre"])
    held = direct(model, [cut(Edges(layer=0, head=0, stack="decoder"), empty="no-update")])
    assert not any("mlp_out" in str(one) for one in held) and any("cross" in str(one) for one in held)
    assert torch.isfinite(run(model, batch, held).logits).all()


# Checkpoints


@EVERY_KIND
def test_a_checkpoint_gives_back_the_model(kind, tmp_path):
    model, batch = kind_of(kind), batch_for(KINDS[kind], "right")
    checkpoints.save(tmp_path / "one", model, {"seed": 3}, [])
    got = checkpoints.load(tmp_path / "one")
    assert got.model.config == KINDS[kind] and type(got.model) is type(model) and not got.model.training
    assert torch.equal(run(got.model, batch).logits, run(model, batch).logits)


# Training


class Reversed:
    """Say the words of a context backwards: 2 to 4 of them, so that both sequences are padded."""

    name, MEANING, length, context_length = "reversed", 1, 5, 4
    vocabulary = (*"abcdef", "<begin>", "<pad>")

    def sample(self, n, seed):
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(2, 5, (n, 1), generator=generator)
        words = torch.randint(6, (n, 4), generator=generator)
        seen = torch.arange(4) < lengths
        order = (lengths - 1 - torch.arange(4)).clamp_min(0)
        said = words.gather(1, order).masked_fill(~seen, 7)
        begin = torch.full((n, 1), 6)
        labels = torch.cat([said.masked_fill(~seen, UNREAD), torch.full((n, 1), UNREAD)], 1)
        valid = torch.cat([seen.new_ones(n, 1), seen], 1)
        context = Batch(words.masked_fill(~seen, 7), torch.full_like(words, UNREAD), seen)
        return Batch(torch.cat([begin, said], 1), labels, valid, vocabulary=self.vocabulary, context=context)

    def corrupt(self, batch, seed):
        return self.sample(len(batch), seed)

    def guessing(self):
        return {}

    def model_dump(self):
        return {}


class Brightest(Reversed):
    """Say which of four patches is the brightest."""

    name, length, d_patch = "brightest", 5, 3
    context_length = None

    def sample(self, n, seed):
        patches = torch.rand(n, 4, 3, generator=torch.Generator().manual_seed(seed))
        tokens, labels = torch.full((n, 5), 7), torch.full((n, 5), UNREAD)
        tokens[:, 0], labels[:, 0] = 6, patches.sum(-1).argmax(-1)
        return Batch(tokens, labels, vocabulary=self.vocabulary, inputs={"patches": patches})


def fitting_config(kind):
    """The task of a kind, and a configuration of the kind that fits it."""
    config = KINDS[kind]
    if kind.startswith("encoder–decoder"):
        return Reversed(), config
    if config.d_patch:
        return Brightest(), config.model_copy(update={"d_patch": 3})
    return Lookup(), config.model_copy(update={"d_vocab": 16, "n_ctx": 9})


FEW = Recipe(steps=3, batch_size=6, warmup=0)


@EVERY_KIND
def test_every_kind_trains_and_every_parameter_moves(kind, tmp_path):
    task, config = fitting_config(kind)
    trained = train(task, config, FEW, seed=5, home=tmp_path, progress=False, device="cpu")
    assert trained.model.config == config
    before, after = fresh(config, 5).state_dict(), trained.model.state_dict()
    still = [name for name in before if torch.equal(before[name], after[name])]
    assert not still and before.keys() == after.keys()
    state, curve = fit(task, config, FEW, 5)
    assert all(torch.equal(state[name], after[name]) for name in state) and curve == trained.curve
    assert record(trained.model, task.sample(4, 9), ["pattern"]).run.logits.isfinite().all()


@pytest.mark.parametrize("kind", ["encoder–decoder", "encoder–decoder, none", "encoder–decoder, pre", "patches",
                                  "relative", "grouped", "window"])  # fmt: skip
def test_an_ensemble_ends_where_each_seed_ends_alone(kind):
    """As in test_training.py: AdamW drifts where a gradient is rounding; typical entries stay within it."""
    (task, config), recipe = fitting_config(kind), Recipe(steps=5, batch_size=8, warmup=2)
    states, curves = fit_ensemble(task, config, recipe, [0, 1], CPU)
    for seed, together, curve in zip((0, 1), states, curves, strict=True):
        single, single_curve = fit(task, config, recipe, seed)
        assert together.keys() == single.keys()
        apart = {name: (value - single[name]).abs() for name, value in together.items() if not name.endswith("b_K")}
        assert max(float(one.max()) for one in apart.values()) <= 1e-4
        assert float(torch.cat([one.flatten() for one in apart.values()]).median()) <= 1e-6
        for point, other in zip(curve, single_curve, strict=True):
            assert point["loss"] == pytest.approx(other["loss"], abs=1e-5)
            assert point["accuracy"] == pytest.approx(other["accuracy"], abs=1e-6)


def test_what_stands_at_padding_teaches_nothing():
    task, config = fitting_config("encoder–decoder")

    class Otherwise(Reversed):
        def sample(self, n, seed):
            batch = super().sample(n, seed)
            context = replace(batch.context, tokens=batch.context.tokens.masked_fill(~batch.context.valid, 0))
            return replace(batch, tokens=batch.tokens.masked_fill(~batch.valid, 1), context=context)

    one, other = fit(task, config, FEW, 0)[0], fit(Otherwise(), config, FEW, 0)[0]
    kept = [name for name in one if not name.endswith("W_E")]
    assert all(torch.equal(one[name], other[name]) for name in kept)


@pytest.mark.parametrize(
    ("task", "config", "said"),
    [
        (Reversed(), config_of(), "one stack; task 'reversed' has a context, which an encoder–decoder reads"),
        (Lookup(), pair_of(d_vocab=16, n_ctx=9), "an encoder; task 'lookup' has no context for it to read"),
        (Brightest(), config_of(), "d_patch=0; task 'brightest' has d_patch=3"),
        (Lookup(), config_of(d_vocab=16, n_ctx=9, d_patch=3), "d_patch=3; task 'lookup' has d_patch=0"),
        (Reversed(), pair_of({"n_ctx": 3}), "an encoder with d_vocab=13 and n_ctx=3; task 'reversed' needs 8 and 4"),
        (Reversed(), pair_of({"d_vocab": 7}), "an encoder with d_vocab=7 and n_ctx=7; task 'reversed' needs 8 and 4"),
        (Reversed(), pair_of({}, {"n_ctx": 4}), "d_vocab=11 and n_ctx=4; task 'reversed' needs 8 and 5"),
    ],
    ids=lambda one: one if isinstance(one, str) else type(one).__name__,
)
def test_a_task_that_a_kind_cannot_do_is_refused(task, config, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        train_each(task, {"": config}, FEW, [0], home=tmp_path, progress=False)
    assert not list(tmp_path.iterdir())


# Dropout and label smoothing


def dropped_in(model, rate=0.5, seed=0, n=1):
    """Each hook point's output for a tensor of ones, while dropping."""
    with dropping(model, rate, torch.Generator().manual_seed(seed)):
        points = model.hook_dict.items()
        return {name: torch.stack([point(torch.ones(50, 40)) for _ in range(n)]) for name, point in points}


DROPS = {
    "encoder": {
        "blocks.0.hook_resid_pre",
        *(f"blocks.{n}.hook_{name}_out" for n in (0, 1) for name in ("attn", "mlp")),
    },
    "encoder–decoder, pre": {
        "encoder.blocks.0.hook_resid_pre", "decoder.blocks.0.hook_resid_pre",
        *(f"encoder.blocks.{n}.hook_{name}_out" for n in (0, 1) for name in ("attn", "mlp")),
        *(f"{part}.blocks.{n}.hook_attn_out" for n in (0, 1) for part in ("decoder", "cross")),
    },
}  # fmt: skip


@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("kind", DROPS)
def test_dropout_acts_on_what_enters_and_what_is_added_and_keeps_the_mean(kind, rate):
    model = kind_of(kind)
    found = dropped_in(model, rate, n=10)
    assert {name for name, value in found.items() if not (value == 1).all()} == DROPS[kind]
    for name in DROPS[kind]:
        zero = float((found[name] == 0).double().mean())
        assert abs(zero - rate) < 5 * math.sqrt(rate * (1 - rate) / 20_000)
        assert torch.allclose(found[name][found[name] != 0], torch.tensor(1 / (1 - rate)))
    assert all((value == 1).all() for value in dropped_in(model, 0.0).values())


def test_dropout_is_drawn_anew_each_time_and_the_same_by_its_seed():
    model, name = kind_of("encoder"), "blocks.0.hook_attn_out"
    one, again, other = (dropped_in(model, seed=seed, n=2)[name] for seed in (0, 0, 1))
    assert torch.equal(one, again) and not torch.equal(one, other) and not torch.equal(one[0], one[1])


def test_dropout_leaves_no_hook_whatever_happens():
    model = kind_of("encoder–decoder")
    with pytest.raises(KeyError), dropping(model, 0.5, torch.Generator()):
        raise KeyError
    assert not any(module._forward_hooks for module in model.modules())
    assert all((value == 1).all() for value in dropped_in(model, 0.0).values())


@pytest.mark.parametrize("kind", ["encoder–decoder", "patches", "relative"])
def test_training_with_dropout_repeats_differs_from_without_and_is_off_afterwards(kind, tmp_path):
    task, config = fitting_config(kind)
    recipe = FEW.model_copy(update={"dropout": 0.3})
    trained = train(task, config, recipe, seed=1, home=tmp_path, progress=False, device="cpu")
    (one, _), (other, _) = fit(task, config, recipe, 1), fit(task, config, FEW, 1)
    after = trained.model.state_dict()
    assert after.keys() == other.keys() and all(torch.equal(one[name], after[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one)
    batch = task.sample(4, 7)
    assert torch.equal(run(trained.model.train(), batch).logits, run(trained.model, batch).logits)


def test_two_model_seeds_drop_other_numbers(monkeypatch):
    task, config = fitting_config("encoder–decoder")
    firsts = []

    def watched(model, rate, generator):
        firsts.append(generator.initial_seed())
        return dropping(model, rate, generator)

    monkeypatch.setattr(fitting, "dropping", watched)
    for seed in (0, 1, 0):
        fit(task, config, FEW.model_copy(update={"dropout": 0.3, "steps": 1}), seed)
    assert firsts[0] == firsts[2] != firsts[1]


def test_an_ensemble_refuses_dropout():
    task, config = fitting_config("encoder–decoder")
    with pytest.raises(ValueError, match="without dropout; leave dropout out, or train on device='cpu'"):
        fit_ensemble(task, config, FEW.model_copy(update={"dropout": 0.1}), [0], CPU)


@pytest.mark.parametrize("kind", ["encoder–decoder", "relative"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_a_smoothed_loss_spreads_its_share_over_all_tokens(kind, share):
    task, config = fitting_config(kind)
    recipe = FEW.model_copy(update={"label_smoothing": share, "steps": 1})
    parts, read, labels = next(training_batches(task, recipe, 2))
    with torch.no_grad():
        log_p = torch.log_softmax(fresh(config, 2)(**parts, read=read).double(), -1)
    target = torch.nn.functional.one_hot(labels.clamp_min(0), log_p.shape[-1]) * (1 - share) + share / log_p.shape[-1]
    want = -(target * log_p).sum(-1)[labels >= 0].mean()
    assert fit(task, config, recipe, 2)[1][0]["loss"] == pytest.approx(float(want), abs=1e-5)
    assert fit_ensemble(task, config, recipe, [2], CPU)[1][0][0]["loss"] == pytest.approx(float(want), abs=1e-5)


@pytest.mark.parametrize("field", ["dropout", "label_smoothing"])
@pytest.mark.parametrize("value", [-0.1, 1.0, math.nan])
def test_a_share_that_is_none_is_refused_by_its_name(field, value):
    with pytest.raises(ValueError, match=field):
        Recipe(**{field: value})
