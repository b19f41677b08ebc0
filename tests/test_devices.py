"""Devices: asked for by name, compared with the CPU before they are trusted."""

import pytest
import torch

from tasks.lookup import Lookup
from workbench import devices
from workbench.devices import WrongDevice, check_parity, choose, one_thread
from workbench.models.config import ModelConfig
from workbench.recipe import Recipe
from workbench.training import train

PROBE = devices._probe


@pytest.fixture(autouse=True)
def no_device_is_known_yet():
    devices._checked.cache_clear()
    yield
    devices._checked.cache_clear()


@pytest.fixture
def machine(monkeypatch):
    """Pretends a machine: `machine(cuda=2, mps=True)`; it computes as the CPU does, unless `probe` says otherwise."""

    def pretend(cuda=0, mps=False, probe=lambda name: PROBE("cpu")):
        probed = []
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
        monkeypatch.setattr(devices, "_probe", lambda name: (probed.append(name), probe(name))[1])
        return probed

    return pretend


def faulty(logits=lambda value: value, gradients=lambda value: value):
    """A probe on which every device but the CPU computes something else."""

    def probe(name):
        right = PROBE("cpu")
        return right if name == "cpu" else (logits(right[0].clone()), gradients(right[1].clone()))

    return probe


def one_nan(value):
    value.flatten()[0] = float("nan")
    return value


# Choice


def test_auto_is_cuda_where_there_is_one_and_the_cpu_elsewhere(machine):
    machine()
    assert choose("auto") == torch.device("cpu")
    machine(mps=True)
    assert choose("auto") == torch.device("cpu")
    machine(cuda=1, mps=True)
    assert choose("auto") == torch.device("cuda")


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:1", "mps"])
def test_a_device_that_is_there_is_itself(machine, name):
    machine(cuda=2, mps=True)
    assert choose(name) == torch.device(name)


@pytest.mark.parametrize("name", ["cuda", "mps", "tpu", "", "CPU", "cpu:9"])
def test_a_device_that_is_not_there_is_an_error_that_lists_those_that_are(machine, name):
    machine()
    with pytest.raises(ValueError, match=rf"no device '{name}' on this machine; there are: auto, cpu$"):
        choose(name)


def test_a_gpu_with_a_number_too_high_is_an_error_that_lists_those_there_are(machine):
    machine(cuda=2)
    with pytest.raises(ValueError, match=r"no device 'cuda:2'.*auto, cpu, cuda, cuda:0, cuda:1$"):
        choose("cuda:2")


# Parity


@pytest.mark.parametrize("name", ["cuda", "mps", "auto"])
@pytest.mark.parametrize(
    ("fault", "what"),
    [
        ({"logits": lambda value: value * 1.001}, "logits"),
        ({"logits": lambda value: value.roll(1, 0)}, "logits"),
        ({"logits": one_nan}, "logits"),
        ({"gradients": lambda value: value * 0}, "gradients"),
        ({"gradients": one_nan}, "gradients"),
        ({"gradients": lambda value: value * float("inf")}, "gradients"),
    ],
)
def test_a_device_that_computes_wrongly_is_refused(machine, name, fault, what):
    machine(cuda=1, mps=True, probe=faulty(**fault))
    with pytest.raises(WrongDevice, match=rf"computes other {what} than the CPU.*use device='cpu'"):
        choose(name)
    assert choose("cpu") == torch.device("cpu")


def test_nothing_is_trained_on_a_device_that_computes_wrongly(machine, tmp_path):
    machine(cuda=1, probe=faulty(logits=one_nan))
    config = ModelConfig(d_vocab=16, n_ctx=9, d_model=8, n_layers=1, n_heads=1)
    with pytest.raises(WrongDevice):
        train(Lookup(), config, Recipe(steps=1, batch_size=2), 0, home=tmp_path, progress=False)
    assert list(tmp_path.iterdir()) == []


def test_a_device_is_compared_on_first_use_and_a_wrong_one_every_time(machine):
    probed = machine(cuda=1)
    choose("cuda"), choose("cuda"), choose("cpu")
    assert probed == ["cpu", "cuda"]
    probed = machine(mps=True, probe=faulty(logits=one_nan))
    for _ in range(2):
        with pytest.raises(WrongDevice):
            choose("mps")
    assert probed == ["cpu", "mps"] * 2


def test_rounding_is_no_wrong_device(machine):
    machine(cuda=1, probe=faulty(logits=lambda value: value * (1 + 1e-6), gradients=lambda value: value * (1 - 1e-6)))
    check_parity("cuda")


def test_what_is_compared_depends_on_every_parameter():
    logits, gradients = PROBE("cpu")
    assert logits.shape == (5, 7, 11) and not logits.requires_grad
    model_size = sum(p.numel() for p in train_size().parameters())
    assert gradients.numel() == model_size and (gradients != 0).float().mean() > 0.5


def train_size():
    from workbench.models.transformer import Transformer

    return Transformer(ModelConfig(d_vocab=11, n_ctx=7, d_model=16, n_layers=2, n_heads=2), seed=0)


# Threads


def test_one_thread_is_one_and_then_what_it_was():
    torch.set_num_threads(2)
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_the_number_of_threads_comes_back_after_an_error():
    torch.set_num_threads(2)
    with pytest.raises(KeyError), one_thread():
        raise KeyError
    assert torch.get_num_threads() == 2
