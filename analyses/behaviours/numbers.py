"""R1–R5: numbers that repeat, in the right precision, on the right device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from analyses.behaviours.cases import (
    EVERY_LAYER,
    ROUNDING,
    Uneven,
    answer,
    at_answer,
    batch_of,
    behaviour,
    close,
    equal,
    error_of,
    pattern,
    rows,
    says,
)
from analyses.tools.protocol import feature, stands


@behaviour("R1", "batch of 1 against batch of 16", "same predictions; logits within rounding")
def batch_size_changes_nothing(tool: Any) -> None:
    batch = batch_of(16)
    for edits in ([], [tool.cut(answer(1))]):
        together = tool.run(batch, edits)
        alone = torch.cat([tool.run(batch.select(slice(i, i + 1)), edits) for i in range(16)])
        close(alone, together, "logits of a batch of 1 and of 16")
        equal(alone.argmax(-1), together.argmax(-1), "predictions of a batch of 1 and of 16")


@behaviour("R2", "the same run twice", "bit-equal on the CPU")
def a_run_repeats(tool: Any) -> None:
    batch = batch_of()
    for edits in ([], [tool.cut(answer(1))], [tool.function(("z", 0), lambda value: value * 2)]):
        equal(tool.run(batch, edits), tool.run(batch, edits), "the same run twice")


@behaviour(
    "R3",
    "bfloat16 model",
    "softmax and metrics in float32; the dtype is in the provenance; a cut weight is still exactly 0",
)
def bfloat16_is_handled(tool: Any) -> None:
    batch, tool = batch_of(), tool.fresh(dtype=torch.bfloat16)
    for layer in EVERY_LAYER:
        stands(tool, ("scores", layer))
        got = tool.record(batch, [("scores", layer), ("pattern", layer)])
        want = torch.softmax(got["scores", layer].float(), -1).to(got["pattern", layer].dtype)
        equal(got["pattern", layer], want, f"layer {layer}: the weights and a softmax in float32")
        row = rows(pattern(tool, batch, [tool.cut(answer(layer))], layer))
        assert not row[at_answer(row, batch)].any(), f"layer {layer}: a cut weight is not exactly 0"
        close(row.sum(-1), torch.ones_like(row[..., 0]), f"layer {layer}: a row's sum", ROUNDING[torch.bfloat16])
    logits = tool.run(batch)
    value = feature(tool, "metric", "metrics")(logits, batch)
    assert value.dtype == torch.float32, f"a metric of bfloat16 logits is {value.dtype}"
    want = torch.log_softmax(logits[:, -1].float(), -1).gather(-1, batch.labels[:, -1:])[:, 0]
    close(value, want, "a metric of bfloat16 logits")
    told = str(feature(tool, "provenance", "provenance")(Uneven()))
    assert "bfloat16" in told, "the provenance does not name the dtype"


@behaviour("R4", "inputs on the CPU, model elsewhere", "moved, or one clear error")
def inputs_elsewhere_are_moved_or_refused(tool: Any) -> None:
    """A model on another device than its inputs: `meta`, which every machine has."""
    batch, tool = batch_of(), tool.fresh()
    tool.run(batch)
    tool.module.to(device := "meta")
    try:
        logits = tool.run(batch)
    except Exception as error:
        says(error, device)
        return
    assert logits.device.type == device, f"the logits lie on {logits.device}, the model on {device}"


@behaviour("R5", "a device that computes wrongly", "a parity check against the CPU on first use, and a refusal")
def a_wrong_device_is_refused(tool: Any) -> None:
    choose = feature(tool, "choose_device", "check of a device against the CPU")
    with a_device("cuda", tool.device_model(), fault=1.0):  # a number that no machine has: what passes is remembered
        assert str(choose("cuda:63")) == "cuda:63", "a device that computes rightly is refused"
    for fault in (1.01, 0.0, float("nan")):
        with a_device("cuda", tool.device_model(), fault):
            error = error_of(lambda: choose("cuda"), f"a device whose logits are {fault} times the right ones")
            says(error, "cuda", "CPU")


@contextmanager
def a_device(name: str, model: type[torch.nn.Module], fault: float) -> Iterator[None]:
    """Pretends a GPU that multiplies logits by `fault`; it computes on the CPU."""
    tensor_to, module_to = Tensor.to, model.to

    def moved(self: Tensor, *given: Any, **more: Any) -> Tensor:
        return self if str(next(iter(given), "")).startswith(name) else tensor_to(self, *given, **more)

    def placed(self: torch.nn.Module, *given: Any, **more: Any) -> torch.nn.Module:
        if not str(next(iter(given), "")).startswith(name):
            return module_to(self, *given, **more)
        self.register_forward_hook(lambda _module, _given, out: out * fault)
        return self

    with (
        mock.patch("torch.cuda.is_available", lambda: True),
        mock.patch("torch.cuda.device_count", lambda: 64),
        mock.patch.object(Tensor, "to", moved),
        mock.patch.object(model, "to", placed),
    ):
        yield


NUMBERS = (
    batch_size_changes_nothing,
    a_run_repeats,
    bfloat16_is_handled,
    inputs_elsewhere_are_moved_or_refused,
    a_wrong_device_is_refused,
)
