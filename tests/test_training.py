"""Training: the same seed gives the same bits, several seeds see what each would see alone, and nothing is trained
twice."""

import io
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from filelock import FileLock
from pydantic import ValidationError
from test_kinds_in_training import fitting_config
from tqdm import tqdm

from tasks.lookup import Lookup
from workbench import fitting, progress, training
from workbench.batch import UNREAD, Batch
from workbench.compiling import NotCompiled, compiled
from workbench.devices import one_thread
from workbench.fitting import ensemble_batches, fit, fit_ensemble, fresh, training_batches
from workbench.metrics import accuracy
from workbench.models.config import ModelConfig
from workbench.models.dropout import dropping
from workbench.models.given import given
from workbench.recipe import Recipe
from workbench.task import derive_seed
from workbench.training import train, train_each, train_many

TASK = Lookup()
TINY = ModelConfig(d_vocab=16, n_ctx=9, d_model=8, n_layers=2, n_heads=2)
SHORT = Recipe(steps=25, batch_size=16, warmup=5)
CPU = torch.device("cpu")


class Breaks(Lookup):
    """Draws what a key is made of, and then no more."""

    def sample(self, n, seed):
        if n != 64:
            raise LookupError("no data today")
        return super().sample(n, seed)


class Kills(Lookup):
    """Ends the process that draws what it trains on."""

    def sample(self, n, seed):
        if n != 64:
            os._exit(3)
        return super().sample(n, seed)


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def weights(trained):
    return trained.model.state_dict()


def here(tmp_path, seeds, recipe=SHORT, **options):
    return train_many(TASK, TINY, recipe, seeds, device="cpu", home=tmp_path, progress=False, **options)


def nothing_trains(monkeypatch):
    def fail(*_):
        raise AssertionError("something is trained")

    monkeypatch.setattr(training, "fit", fail)
    monkeypatch.setattr(training, "_fit_all", fail)


# One seed


def test_a_seed_gives_the_same_bits_in_this_process_and_in_the_pool(tmp_path):
    alone = {seed: fit(TASK, TINY, SHORT, seed)[0] for seed in (0, 1)}
    assert equal(alone[0], fit(TASK, TINY, SHORT, 0)[0])
    pooled = here(tmp_path, [1, 0])
    assert [one.seed for one in pooled] == [1, 0]
    assert all(equal(weights(one), alone[one.seed]) for one in pooled)
    assert equal(weights(here(tmp_path / "single", [0])[0]), alone[0])


def test_a_seed_gives_the_same_bits_whatever_the_number_of_threads_and_the_global_seed():
    torch.manual_seed(1)
    one = fit(TASK, TINY, SHORT, 0)[0]
    torch.manual_seed(2)
    torch.set_num_threads(2)
    assert equal(one, fit(TASK, TINY, SHORT, 0)[0])
    assert torch.get_num_threads() == 2


def test_another_seed_starts_elsewhere_and_sees_other_data():
    assert not torch.equal(fresh(TINY, 0).embed.W_E, fresh(TINY, 1).embed.W_E)
    first, second = (next(training_batches(TASK, SHORT, seed))[0]["tokens"] for seed in (0, 1))
    assert not torch.equal(first, second)
    assert not equal(fit(TASK, TINY, SHORT, 0)[0], fit(TASK, TINY, SHORT, 1)[0])


def test_training_changes_every_parameter_and_lowers_the_loss():
    state, curve = fit(TASK, TINY, Recipe(steps=30, batch_size=32, warmup=5, lr=1e-2), 0)
    still = [name for name, value in fresh(TINY, 0).state_dict().items() if torch.equal(value, state[name])]
    assert still == []
    assert curve[-1]["loss"] < curve[0]["loss"] - 0.5


def test_models_leave_training_in_eval_mode_on_the_cpu_in_float32(tmp_path):
    (one,) = here(tmp_path, [0])
    assert not any(module.training for module in one.model.modules())
    assert {(value.device.type, value.dtype) for value in weights(one).values()} == {("cpu", torch.float32)}


# The same bits as a plain loop


def slowly(task, config, recipe, seed):
    """The loop that says what `fit` does: PyTorch's optimiser, a batch drawn where it is used."""
    model = fresh(config, seed).train()
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=recipe.lr, betas=(recipe.beta1, recipe.beta2), weight_decay=recipe.weight_decay,
        fused=True,
    )  # fmt: skip
    losses, dropped = [], torch.Generator().manual_seed(derive_seed("dropout", seed))
    with one_thread(), dropping(model, recipe.dropout, dropped):
        for step in range(recipe.steps):
            block, within = divmod(step, fitting.STEPS_A_BLOCK)
            steps = min(fitting.STEPS_A_BLOCK, recipe.steps - block * fitting.STEPS_A_BLOCK)
            drawn = task.sample(steps * recipe.batch_size, derive_seed("train", seed, block))
            examples = torch.arange(within * recipe.batch_size, (within + 1) * recipe.batch_size)
            read = drawn.read_positions()
            repeated = torch.cat([torch.zeros(len(read), 1, dtype=torch.bool), read[:, 1:] == read[:, :1]], 1)
            labels = drawn.labels.gather(1, read).masked_fill(repeated, UNREAD)[examples]
            parts = {name: value[examples] for name, value in given(drawn).items()}
            optimiser.param_groups[0]["lr"] = recipe.rate(step)
            logits = model(**parts, read=read[examples])
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=recipe.label_smoothing)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
    return model.state_dict(), losses


PLAINLY = {"plain": {}, "dropped and smoothed": {"dropout": 0.2, "label_smoothing": 0.1, "weight_decay": 0.1}}
BITS = [
    *(("grouped", {"norm": norm, "attn_only": without}) for norm in ("post", "pre", "none") for without in (0, 1)),
    *((kind, {}) for kind in ("relative", "sinusoidal", "window", "patches", "encoder–decoder",
                              "encoder–decoder, pre", "encoder–decoder, none")),
]  # fmt: skip


@pytest.mark.parametrize("how", PLAINLY)
@pytest.mark.parametrize(("kind", "change"), BITS, ids=str)
def test_weights_are_those_of_the_plain_loop_bit_for_bit(kind, change, how):
    task, config = fitting_config(kind)
    change = {name: bool(value) if name == "attn_only" else value for name, value in change.items()}
    config = config.model_copy(update=change)
    recipe = Recipe(steps=fitting.STEPS_A_BLOCK + 4, batch_size=8, warmup=2, curve_every=1, **PLAINLY[how])
    want, losses = slowly(task, config, recipe, 3)
    state, curve = fit(task, config, recipe, 3)
    assert equal(state, want)
    assert [point["loss"] for point in curve] == losses


def test_the_lectures_model_has_the_bits_of_the_plain_loop():
    config, recipe = ModelConfig(d_vocab=16, n_ctx=9, d_model=32, n_layers=2, n_heads=1), Recipe(steps=12)
    assert equal(fit(TASK, config, recipe, 0)[0], slowly(TASK, config, recipe, 0)[0])


# Data


def test_every_block_of_steps_is_drawn_anew_and_none_is_drawn_twice():
    recipe = Recipe(steps=fitting.STEPS_A_BLOCK + 3, batch_size=4)
    drawn = list(training_batches(TASK, recipe, 0))
    assert len(drawn) == recipe.steps
    assert {tuple(parts["tokens"].shape) for parts, _, _ in drawn} == {(4, 9)}
    assert len({parts["tokens"].numpy().tobytes() for parts, _, _ in drawn}) == recipe.steps


def rows_of(drawn):
    """A step's numbers, by what they are."""
    parts, read, labels = drawn
    return {**parts, "read": read, "labels": labels}


@pytest.mark.parametrize("kind", ["grouped", "encoder–decoder", "patches"])
def test_a_seed_of_eight_sees_in_each_step_what_it_sees_alone(kind):
    """Also over the end of a block, where one seed's examples are padded and another's are not."""
    task, _ = fitting_config(kind)
    recipe = Recipe(steps=fitting.STEPS_A_BLOCK + 3, batch_size=4)
    seeds = list(range(8))
    alone = [list(training_batches(task, recipe, seed)) for seed in seeds]
    together = list(ensemble_batches(task, recipe, seeds, CPU))
    assert len(together) == recipe.steps
    for step, several in enumerate(together):
        for seed in seeds:
            one, other = rows_of(alone[seed][step]), rows_of(several)
            assert set(one) <= set(other)
            for name, value in one.items():
                assert torch.equal(other[name][seed][:, : value.shape[1]], value), (name, seed, step)


def test_an_ensemble_is_trained_on_its_batches_and_no_others(monkeypatch):
    def of_another_seed(task, recipe, seeds, device):
        return ensemble_batches(task, recipe, [seed + 10 for seed in seeds], device)

    recipe = Recipe(steps=2, batch_size=4)
    before = fit_ensemble(TASK, TINY, recipe, [0], CPU)[1]
    assert before == fit_ensemble(TASK, TINY, recipe, [0], CPU)[1]
    monkeypatch.setattr(fitting, "ensemble_batches", of_another_seed)
    assert before != fit_ensemble(TASK, TINY, recipe, [0], CPU)[1]


def test_the_next_block_is_drawn_by_another_thread_while_one_is_trained_on():
    threads, begun = [], threading.Event()

    class Watched(Lookup):
        def sample(self, n, seed):
            threads.append(threading.current_thread())
            if len(threads) == 2:
                begun.set()
            return super().sample(n, seed)

    steps = ensemble_batches(Watched(), Recipe(steps=2 * fitting.STEPS_A_BLOCK, batch_size=2), [0], CPU)
    next(steps)
    assert begun.wait(60), "the second block waits for the first to be used up"
    assert threading.main_thread() not in threads and len(set(threads)) == 1
    steps.close()
    assert not threads[0].is_alive()


def test_a_task_that_fails_in_the_drawing_thread_fails_the_ensemble():
    with pytest.raises(LookupError, match="no data today"):
        fit_ensemble(Breaks(), TINY, SHORT, [0, 1], CPU)


def drawn_by(labels, valid=None):
    """A task of which only `sample` is asked: the same labels in every example."""
    row = torch.tensor(labels)
    return SimpleNamespace(
        name="made up",
        sample=lambda n, seed: Batch(
            torch.zeros(n, row.shape[1], dtype=torch.long),
            row.repeat(n // len(row), 1),
            valid=None if valid is None else torch.tensor(valid).repeat(n // len(row), 1),
        ),
    )


def test_an_example_with_fewer_reads_than_another_counts_each_of_them_once():
    uneven = drawn_by([[UNREAD, 3, UNREAD, 5], [UNREAD, UNREAD, 7, UNREAD]])
    _, read, labels = next(training_batches(uneven, Recipe(steps=1, batch_size=2), 0))
    assert read.tolist() == [[1, 3], [2, 2]]
    assert labels.tolist() == [[3, 5], [7, UNREAD]]


def test_a_task_that_pads_says_what_is_padding():
    padded = drawn_by([[3, UNREAD], [3, 4]], valid=[[True, False], [True, True]])
    parts, read, labels = next(training_batches(padded, Recipe(steps=1, batch_size=2), 0))
    assert parts["valid"].tolist() == [[True, False], [True, True]]
    assert (read.tolist(), labels.tolist()) == ([[0, 1], [0, 1]], [[3, UNREAD], [3, 4]])


# Ensemble


def test_an_ensemble_ends_where_each_seed_ends_alone():
    """AdamW scales a gradient that is rounding up to the size of any other: a bias of the keys, which adds the same to
    every score of a row, drifts, and single entries of other weights do where a machine sums in another order. No entry
    may drift by more than 1e-4 in 20 steps, and of all but that bias, typical ones stay within rounding."""
    config, recipe = ModelConfig(d_vocab=16, n_ctx=9, d_model=32, n_layers=2, n_heads=1), Recipe(steps=20)
    states, curves = fit_ensemble(TASK, config, recipe, [0, 1, 2], CPU)
    for seed, together, curve in zip((0, 1, 2), states, curves, strict=True):
        alone, alone_curve = fit(TASK, config, recipe, seed)
        apart = {name: float((value - alone[name]).abs().max()) for name, value in together.items()}
        assert together.keys() == alone.keys()
        assert max(apart.values()) <= 1e-4, apart
        rest = [(value - alone[name]).abs().flatten() for name, value in together.items() if not name.endswith("b_K")]
        assert float(torch.cat(rest).median()) <= 1e-6
        assert [point["step"] for point in curve] == [point["step"] for point in alone_curve]
        for point, other in zip(curve, alone_curve, strict=True):
            assert point["loss"] == pytest.approx(other["loss"], abs=1e-5)
            assert point["accuracy"] == pytest.approx(other["accuracy"], abs=1e-6)


def test_the_key_bias_has_no_gradient_but_rounding():
    model = fresh(TINY, 0).double()
    parts, read, labels = next(training_batches(TASK, SHORT, 0))
    tokens = parts["tokens"]
    F.cross_entropy(model(tokens, read=read).flatten(0, 1), labels.flatten()).backward()
    for block in model.blocks:
        assert block.attn.b_K.grad.abs().max() < 1e-15 < 1e-6 < block.attn.b_Q.grad.abs().max()


def test_one_of_eight_seeds_ends_where_it_ends_alone():
    config = ModelConfig(d_vocab=16, n_ctx=9, d_model=16, n_layers=2, n_heads=1)
    recipe = Recipe(steps=20, batch_size=64)
    states, curves = fit_ensemble(TASK, config, recipe, list(range(8)), CPU)
    for seed in (0, 7):
        (single,), (single_curve,) = fit_ensemble(TASK, config, recipe, [seed], CPU)
        alone, _ = fit(TASK, config, recipe, seed)
        for one in (single, alone):
            apart = {name: (value - one[name]).abs() for name, value in states[seed].items() if "b_K" not in name}
            assert max(float(value.max()) for value in apart.values()) <= 1e-4
            assert float(torch.cat([value.flatten() for value in apart.values()]).median()) <= 1e-6
        assert curves[seed][-1]["loss"] == pytest.approx(single_curve[-1]["loss"], abs=1e-5)


def test_seeds_of_an_ensemble_do_not_touch_each_other():
    recipe = Recipe(steps=3, batch_size=8, warmup=0)
    (first, _), _ = fit_ensemble(TASK, TINY, recipe, [0, 1], CPU)
    (again, other), _ = fit_ensemble(TASK, TINY, recipe, [0, 5], CPU)
    assert all(torch.allclose(first[name], again[name], atol=1e-6) for name in first if "b_K" not in name)
    assert not torch.allclose(again["embed.W_E"], other["embed.W_E"])


# Compiled

COMPILES = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("g++", "clang++")), reason="this machine has no compiler of C++"
)


@COMPILES
@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.filterwarnings("error::workbench.compiling.NotCompiled")
def test_a_compiled_ensemble_ends_where_one_that_is_not_does():
    recipe = Recipe(steps=20, batch_size=16, warmup=2)
    for seeds in ([0, 1, 2], [5, 4, 3]):
        states, curves = fit_ensemble(TASK, TINY, recipe, seeds, CPU, compiling=True)
        plain, plain_curves = fit_ensemble(TASK, TINY, recipe, seeds, CPU)
        for one, other, curve, plain_curve in zip(states, plain, curves, plain_curves, strict=True):
            assert max(float((one[name] - other[name]).abs().max()) for name in one if "b_K" not in name) <= 1e-4
            assert curve[-1]["loss"] == pytest.approx(plain_curve[-1]["loss"], abs=1e-5)


def test_without_a_compiler_an_ensemble_says_so_and_ends_with_the_same_bits(monkeypatch):
    def without(function):
        def fail(*_):
            raise RuntimeError("No working C++ compiler found\nand many lines more")

        return fail

    recipe = Recipe(steps=3, batch_size=4)
    plain = fit_ensemble(TASK, TINY, recipe, [0, 1], CPU)
    monkeypatch.setattr(torch, "compile", without)
    with pytest.warns(NotCompiled, match="^not compiled, and run as it is: No working C\\+\\+ compiler found$"):
        other = fit_ensemble(TASK, TINY, recipe, [0, 1], CPU, compiling=True)
    assert all(equal(one, two) for one, two in zip(plain[0], other[0], strict=True)) and plain[1] == other[1]


def test_a_function_that_cannot_be_compiled_runs_as_it_is_and_says_so_once(monkeypatch):
    def fail(*_):
        raise RuntimeError("this is not supported")

    monkeypatch.setattr(torch, "compile", lambda function: fail if function.__name__ == "double" else function)

    def double(x):
        return 2 * x

    made = compiled(double, CPU)
    with pytest.warns(NotCompiled, match="this is not supported"):
        assert made(3) == 6
    assert made(4) == 8


def test_on_a_device_for_which_nothing_is_compiled_the_function_is_itself_and_says_so():
    with pytest.warns(NotCompiled, match="nothing is compiled for 'mps', only for a CPU and for CUDA"):
        assert compiled(abs, torch.device("mps")) is abs


def test_a_wrong_call_of_a_compiled_function_is_its_own_error_and_no_warning(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function: function)
    with pytest.raises(ZeroDivisionError):
        compiled(lambda x: 1 / x, CPU)(0)


def test_nothing_is_compiled_unless_asked(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda *_: pytest.fail("something is compiled"))
    fit(TASK, TINY, Recipe(steps=1, batch_size=2), 0)
    fit_ensemble(TASK, TINY, Recipe(steps=1, batch_size=2), [0], CPU)


# Recipe


def test_the_rate_rises_to_its_peak_and_falls_along_a_cosine_to_zero():
    recipe = Recipe(steps=1000, lr=3e-3, warmup=100)
    rates = [recipe.rate(step) for step in range(1001)]
    assert rates[0] == pytest.approx(3e-5) and rates[49] == pytest.approx(1.5e-3)
    assert rates[99] == rates[100] == max(rates) == 3e-3
    assert rates[550] == pytest.approx(1.5e-3)
    assert rates[1000] == 0 and 0 < rates[999] < 1e-7
    assert rates[:100] == sorted(rates[:100]) and rates[100:] == sorted(rates[100:], reverse=True)


def test_without_warmup_the_rate_starts_at_its_peak():
    assert Recipe(steps=10, lr=0.5, warmup=0).rate(0) == 0.5
    assert Recipe(steps=10, lr=0.5, warmup=0).rate(10) == 0


def test_a_run_shorter_than_its_warmup_only_rises():
    assert [Recipe(steps=3, lr=1.0, warmup=10).rate(step) for step in range(3)] == pytest.approx([0.1, 0.2, 0.3])


@pytest.mark.parametrize(
    "wrong",
    [{"steps": 0}, {"batch_size": 0}, {"lr": 0}, {"warmup": -1}, {"stop_at": 1.5}, {"curve_every": 0}],
)
def test_impossible_recipes_are_refused_by_the_name_of_the_field(wrong):
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        Recipe(**wrong)


# Curve and early end


def test_the_curve_has_the_first_step_every_tenth_and_the_last(tmp_path):
    _, curve = fit(TASK, TINY, SHORT, 0)
    assert [point["step"] for point in curve] == [1, 10, 20, 25]
    parts, read, labels = next(training_batches(TASK, SHORT, 0))
    tokens = parts["tokens"]
    logits = fresh(TINY, 0)(tokens, read=read)[:, 0]
    assert curve[0]["loss"] == pytest.approx(float(F.cross_entropy(logits, labels[:, 0]).detach()), rel=1e-6)
    assert curve[0]["accuracy"] == float((logits.argmax(-1) == labels[:, 0]).float().mean())
    assert here(tmp_path, [0])[0].curve == curve == here(tmp_path, [0])[0].curve


def test_training_ends_early_only_when_asked():
    every = Recipe(steps=25, batch_size=16, warmup=5, curve_every=1)
    _, whole = fit(TASK, TINY, every, 0)
    assert len(whole) == 25
    reached = next(point["step"] for point in whole if point["accuracy"] >= 0.2)
    _, early = fit(TASK, TINY, every.model_copy(update={"stop_at": 0.2}), 0)
    assert 1 < reached < 25 and early == whole[:reached]


def test_an_ensemble_refuses_to_end_early():
    with pytest.raises(ValueError, match=r"every seed for all steps.*stop_at.*device='cpu'"):
        fit_ensemble(TASK, TINY, Recipe(steps=2, stop_at=0.9), [0, 1], CPU)


# Nothing twice


@pytest.mark.parametrize("seeds", [[0], [0, 1]])
def test_what_is_trained_is_loaded_and_not_trained_again(tmp_path, monkeypatch, seeds):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    before = here(tmp_path, seeds)
    nothing_trains(monkeypatch)
    after = here(tmp_path, seeds[::-1])[::-1]
    assert all(equal(weights(a), weights(b)) and a.folder == b.folder for a, b in zip(before, after, strict=True))
    with pytest.raises(AssertionError, match="something is trained"):
        here(tmp_path, [7])


def test_only_the_seeds_that_are_missing_are_trained(tmp_path, monkeypatch):
    here(tmp_path, [0])
    asked = []
    monkeypatch.setattr(training, "fit", lambda *args: (asked.append(args[3]), fit(*args))[1])
    assert [one.seed for one in here(tmp_path, [1, 0])] == [1, 0]
    assert asked == [1]


def test_a_damaged_checkpoint_is_an_error_and_not_a_reason_to_train(tmp_path, monkeypatch):
    (one,) = here(tmp_path, [0])
    (one.folder / "model.safetensors").write_bytes(b"")
    nothing_trains(monkeypatch)
    with pytest.raises(ValueError, match=rf"{one.folder.name}.*SHA-256 differs.*delete the folder"):
        here(tmp_path, [0])


def ask(home, log, together, seeds):
    """What a process does that asks for models: a line in the log for each it trains."""

    def noted(task, config, recipe, seed, tick):
        with open(log, "a") as lines:
            lines.write(f"{seed}\n")
        time.sleep(0.5)
        return fit(task, config, recipe, seed, tick)

    training.fit, os.cpu_count = noted, lambda: 1
    together.wait(60)
    here(home, seeds, Recipe(steps=2, batch_size=2))


def test_two_processes_that_ask_for_the_same_models_train_each_once(tmp_path):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["workbench.training"])
    log, together = tmp_path / "log", context.Barrier(2)
    asking = [context.Process(target=ask, args=(tmp_path, log, together, seeds)) for seeds in ([0, 1], [1, 0])]
    for process in asking:
        process.start()
    for process in asking:
        process.join(60)
    assert [process.exitcode for process in asking] == [0, 0]
    assert sorted(log.read_text().split()) == ["0", "1"]


# Several configurations


SMALL = TINY.model_copy(update={"n_layers": 1})
CONFIGS = {"one layer": SMALL, "two layers": TINY}


def each(tmp_path, configs, seeds=(0, 1), **options):
    return train_each(TASK, configs, SHORT, seeds, device="cpu", home=tmp_path, **{"progress": False} | options)


def test_several_configurations_give_the_bits_each_gives_alone_in_the_order_asked(tmp_path):
    together = each(tmp_path / "together", CONFIGS, [1, 0])
    assert list(together) == list(CONFIGS)
    for name, config in CONFIGS.items():
        alone = train_many(TASK, config, SHORT, [1, 0], device="cpu", home=tmp_path / "alone", progress=False)
        assert [one.seed for one in together[name]] == [1, 0]
        for one, other in zip(together[name], alone, strict=True):
            assert one.model.config == config and one.folder.name == other.folder.name
            assert equal(weights(one), weights(other)) and one.curve == other.curve


def test_several_configurations_have_one_bar_of_all_steps(tmp_path, monkeypatch):
    bars = []
    monkeypatch.setattr(progress, "tqdm", lambda **options: bars.append(tqdm(**options)) or bars[-1])
    each(tmp_path, CONFIGS)
    each(tmp_path, CONFIGS)
    assert [bar.total for bar in bars] == [2 * 2 * SHORT.steps]


def test_the_largest_models_are_trained_first_and_others_in_the_order_asked(tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setattr(training, "fit", lambda *args: (begun.append((args[1], args[3])), fit(*args))[1])
    wide = SMALL.model_copy(update={"d_model": 16, "d_head": 8, "d_mlp": 32})
    each(tmp_path, {"small": SMALL, "deep": TINY, "wide": wide}, [1, 0])
    assert begun == [(TINY, 1), (TINY, 0), (wide, 1), (wide, 0), (SMALL, 1), (SMALL, 0)]


def test_on_another_device_each_configuration_is_one_ensemble_of_the_seeds_it_lacks(tmp_path, monkeypatch):
    asked = []

    def spy(task, config, recipe, seeds, device, tick):
        asked.append((config, seeds, device.type))
        return fit_ensemble(task, config, recipe, seeds, CPU, tick)

    monkeypatch.setattr(training, "choose", lambda _: torch.device("cuda"))
    monkeypatch.setattr(training, "fit_ensemble", spy)
    each(tmp_path, {"one layer": SMALL}, [0])
    each(tmp_path, CONFIGS)
    assert asked == [(SMALL, [0], "cuda"), (TINY, [0, 1], "cuda"), (SMALL, [1], "cuda")]


def test_a_configuration_with_two_names_is_trained_once(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setattr(training, "fit", lambda *args: (asked.append(args[3]), fit(*args))[1])
    found = each(tmp_path, {"a": TINY, "b": TINY.model_copy()})
    assert asked == [0, 1]
    assert [one.folder for one in found["a"]] == [one.folder for one in found["b"]]


def test_the_configuration_that_does_not_fit_its_task_is_named(tmp_path):
    short = TINY.model_copy(update={"n_ctx": 8})
    with pytest.raises(ValueError, match=r"the model 'short' has d_vocab=16 and n_ctx=8; task 'lookup' needs 16 and 9"):
        each(tmp_path, {"whole": TINY, "short": short})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("configs", [{}, TINY, [TINY]], ids=["none", "one without a name", "a list"])
def test_configurations_without_names_are_refused(tmp_path, configs):
    with pytest.raises(ValueError, match=r"one or more ModelConfig by name, as \{'two layers': config\}; got "):
        each(tmp_path, configs)
    assert list(tmp_path.iterdir()) == []


# What goes wrong


@pytest.mark.parametrize("change", [{"d_vocab": 15}, {"n_ctx": 8}])
def test_a_model_too_small_for_its_task_is_refused(tmp_path, change):
    config = TINY.model_copy(update=change)
    with pytest.raises(ValueError, match=r"d_vocab=\d+ and n_ctx=\d; task 'lookup' needs 16 and 9"):
        train(TASK, config, SHORT, 0, home=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seeds", [[], [1, 1], [0.5], ["0"], [True], [None]])
def test_seeds_that_are_no_set_of_whole_numbers_are_refused(tmp_path, seeds):
    with pytest.raises(ValueError, match=r"one or more whole numbers, each once; got \["):
        here(tmp_path, seeds)
    assert list(tmp_path.iterdir()) == []


def test_a_numpy_seed_is_the_seed_it_equals(tmp_path, monkeypatch):
    here(tmp_path, [3])
    nothing_trains(monkeypatch)
    assert here(tmp_path, np.array([3]))[0].seed == 3


def test_another_default_dtype_is_refused_since_the_key_says_float32(tmp_path):
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ValueError, match=r"float32, and torch's default is torch\.float64"):
            here(tmp_path, [0])
    finally:
        torch.set_default_dtype(torch.float32)


def leftovers(home):
    """What a failed training left behind: locks that are held, and anything that is no lock."""
    files = list((home / "checkpoints").iterdir())
    for file in files:
        if file.suffix == ".lock":
            FileLock(file).acquire(timeout=0).lock.release()
    return [file.name for file in files if file.suffix != ".lock"]


@pytest.mark.parametrize("seeds", [[0], [0, 1]])
def test_an_error_in_training_reaches_the_caller_and_leaves_nothing(tmp_path, seeds):
    with pytest.raises(LookupError, match="no data today"):
        train_many(Breaks(), TINY, SHORT, seeds, device="cpu", home=tmp_path, progress=False)
    assert leftovers(tmp_path) == []


def test_a_worker_that_dies_is_an_error_that_says_so_and_spares_other_processes(tmp_path):
    bystander = multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(30,))
    bystander.start()
    try:
        with pytest.raises(RuntimeError, match=r"ended before its model was trained.*__main__"):
            train_many(Kills(), TINY, SHORT, [0, 1], device="cpu", home=tmp_path, progress=False)
        bystander.join(2)
        assert bystander.is_alive()
    finally:
        bystander.terminate()
        bystander.join()
    assert leftovers(tmp_path) == []


def test_a_training_that_diverges_is_an_error_and_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match=r"holds NaN or infinity: the training diverged.*lr"):
        here(tmp_path, [0], SHORT.model_copy(update={"lr": 1e30}))
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("progress", [True, False])
def test_progress_is_drawn_on_a_terminal_and_only_where_it_is_wanted(tmp_path, monkeypatch, capfd, progress):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    train(TASK, TINY, SHORT, 0, device="cpu", home=tmp_path, progress=progress)
    drawn = sys.stderr.getvalue()
    assert ("training" in drawn and "25/25" in drawn) if progress else drawn == ""
    assert capfd.readouterr() == ("", "")


# Slow

SCRIPT = """
from tasks.lookup import Lookup
from workbench import ModelConfig, Recipe, train_many

class Own(Lookup):
    pass

config = ModelConfig(d_vocab=16, n_ctx=9, d_model=8, n_layers=1, n_heads=1)
models = train_many({task}(), config, Recipe(steps=2, batch_size=2), [0, 1], device="cpu", home={home!r})
print("trained", len(models))
"""


def script(tmp_path, task):
    (tmp_path / "script.py").write_text(SCRIPT.format(task=task, home=str(tmp_path)))
    return subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=180)


@pytest.mark.slow
def test_a_plain_script_trains_several_seeds_without_a_guard(tmp_path):
    out = script(tmp_path, "Lookup")
    assert (out.returncode, out.stdout) == (0, "trained 2\n"), out.stderr


@pytest.mark.slow
def test_a_script_with_a_task_of_its_own_is_told_to_add_one_instead_of_waiting_for_ever(tmp_path):
    out = script(tmp_path, "Own")
    assert out.returncode == 1 and out.stdout == ""
    assert "if __name__ == '__main__':" in out.stderr.splitlines()[-1]


@pytest.mark.slow
def test_the_lectures_recipe_does_the_task_on_fresh_sequences(tmp_path):
    config = ModelConfig(d_vocab=16, n_ctx=9, d_model=32, n_layers=2, n_heads=1)
    models = train_many(TASK, config, Recipe(), [0, 1], device="cpu", home=tmp_path, progress=False)
    fresh_sequences = TASK.sample(4000, seed=12345)
    for one in models:
        with torch.no_grad():
            right = accuracy(one.model(fresh_sequences.tokens), fresh_sequences)
        assert float(right.mean()) >= 0.995, one.seed
