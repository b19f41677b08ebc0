"""One example through one model: what it predicts, and every head's attention pattern as a figure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workbench.batch import UNREAD, Batch
from workbench.running import record

SUFFIXES = (".svg", ".png", ".pdf")
SEVERAL = "record(model, batch, ['cross.pattern']) and workbench.figures.pattern_grids draw those of several"


@dataclass(frozen=True)
class Prediction:
    """What is read at one position: the word expected, and the two likeliest words with their probabilities."""

    position: int
    expected: str
    said: str
    probability: float
    runner_up: str
    runner_up_probability: float

    @property
    def text(self) -> str:
        """One line of it."""
        verdict = "correct" if self.said == self.expected else f"wrong, {self.expected} is right"
        second = f"then {self.runner_up} ({self.runner_up_probability:.3f})"
        return f"position {self.position}: {self.said} ({self.probability:.3f}), {verdict}; {second}"


@dataclass(frozen=True)
class Reading:
    """A model's reading of one example.

    words: one a position; predictions: one a read position; patterns: "L0H0" → weights after the softmax [dest source];
    visible [dest source]: which sources the mask lets each destination read.
    """

    words: tuple[str, ...]
    predictions: tuple[Prediction, ...]
    patterns: Mapping[str, Tensor]
    visible: Tensor

    @property
    def text(self) -> str:
        """The example and its predictions, a line each."""
        return "\n".join([" ".join(self.words), *(prediction.text for prediction in self.predictions)])


def read_example(model: Any, batch: Batch) -> Reading:
    """The model's predictions and patterns on a batch of one example. Raises ValueError for another number of examples,
    and for a model of several stacks.

    >>> import torch
    >>> from workbench import Batch, ModelConfig, Transformer
    >>> model = Transformer(ModelConfig(d_vocab=3, n_ctx=2, d_model=4, n_layers=1, n_heads=2), seed=0)
    >>> batch = Batch(torch.tensor([[0, 1]]), torch.tensor([[-100, 2]]), vocabulary=("a", "b", "c"))
    >>> list(read_example(model, batch).patterns)
    ['L0H0', 'L0H1']
    """
    if len(batch) != 1:
        raise ValueError(f"one example is shown at a time, and the batch has {len(batch)}; select one")
    if "" not in model.parts:
        raise ValueError(f"patterns of one stack are shown, and this model has {', '.join(model.parts)}; {SEVERAL}")
    recording = record(model, batch, ["pattern"])
    patterns = {
        f"L{layer}H{head}": pattern.cpu()
        for (_, layer), patterns in recording.values.items()
        for head, pattern in enumerate(patterns[0])
    }
    ran = recording.run.batch
    visible = model.sees(ran, "", 0)[0].cpu()
    return Reading(tuple(batch.words(0)), _predictions(recording.run.logits[0], batch), patterns, visible)


def show(task: Any, tokens: str, file: Path, checkpoint: Path | None = None) -> Reading:
    """Reads one example, given in the task's words, and draws the patterns to `file`.

    checkpoint: a checkpoint's folder; without it the one that the task ships. The suffix of `file` (.svg, .png, .pdf)
    says what is written. Raises ValueError for another suffix, for a sequence that the task refuses and for a model of
    another vocabulary or length, and FileNotFoundError where there is no checkpoint.
    """
    if file.suffix not in SUFFIXES:
        raise ValueError(f"{file} cannot be drawn: its suffix is {file.suffix!r}; use one of {', '.join(SUFFIXES)}")
    if not hasattr(task, "encode"):
        raise ValueError(f"the task {task.name!r} reads no sequence: give it `encode(text) -> Batch`, as Lookup has")
    batch = task.encode(tokens)
    if batch.context is not None:
        raise ValueError(f"patterns of one stack are shown, and the task {task.name!r} has a context; {SEVERAL}")
    reading = read_example(_model(task, checkpoint), batch)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(_drawn(reading, file.suffix))
    return reading


def _predictions(logits: Tensor, batch: Batch) -> tuple[Prediction, ...]:
    labels = batch.labels[0]
    probabilities, order = torch.softmax(logits.float().cpu(), -1).sort(stable=True, dim=-1, descending=True)
    return tuple(
        Prediction(
            position=pos,
            expected=batch.word(int(labels[pos])),
            said=batch.word(int(order[pos, 0])),
            probability=float(probabilities[pos, 0]),
            runner_up=batch.word(int(order[pos, 1])),
            runner_up_probability=float(probabilities[pos, 1]),
        )
        for pos in (labels != UNREAD).nonzero().flatten().tolist()
    )


def _model(task: Any, checkpoint: Path | None) -> Any:
    from workbench.checkpoints import load

    folder = checkpoint or getattr(task, "checkpoint", None)
    mend = f"train one with `workbench train {task.name}` and name its folder with --checkpoint"
    if folder is None:
        raise FileNotFoundError(f"the task {task.name!r} ships no checkpoint; {mend}")
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"there is no checkpoint at {folder}; {mend}")
    model = load(folder).model
    config = model.config
    if config.d_vocab != len(task.vocabulary) or config.n_ctx < task.length:
        raise ValueError(
            f"the model in {folder} knows {config.d_vocab} tokens and {config.n_ctx} positions; the task {task.name!r} "
            f"has {len(task.vocabulary)} tokens and {task.length} positions; {mend}"
        )
    return model


def _drawn(reading: Reading, suffix: str) -> bytes:
    from workbench.figures import pattern_grids, to_pdf, to_png, to_svg

    figure = pattern_grids(reading.patterns, reading.words, reading.words, visible=reading.visible)
    return {".svg": to_svg, ".png": to_png, ".pdf": to_pdf}[suffix](figure)
