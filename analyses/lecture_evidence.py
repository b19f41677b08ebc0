"""What the lecture's report is written from: trained models under study, measured."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from analyses.lecture_table import TWO
from tasks.lookup import Lookup
from workbench import Recipe, Study, contrast, joined, paired_tests, pattern_table, run_study
from workbench.checkpoints import Trained
from workbench.fitting import training_batches

PAIRS = [
    ("cut-other", "cut-answer"),
    ("clean", "cut-other"),
    ("cut-largest-control", "cut-largest"),
    ("clean", "cut-largest"),
    ("clean", "uniform"),
    ("clean", "no-update"),
    ("cut-hidden-control", "cut-hidden"),
    ("clean", "cut-hidden-control"),
]


@dataclass(frozen=True)
class Evidence:
    """Everything that the report is written from.

    frame: the results frame; its metric `drawn` (0 or 1, clean condition) says whether a test sequence was among those
    the model was trained on. exact, sampled: the guessers' accuracy, by enumeration and on the test sequences.
    """

    task: Lookup
    recipe: Recipe
    trained: Mapping[str, list[Trained]]
    studies: Mapping[str, Study]
    frame: pd.DataFrame
    notes: pd.DataFrame
    exact: Mapping[str, float]
    sampled: Mapping[str, float]
    weights: pd.DataFrame
    quick: bool

    @classmethod
    def measured(
        cls,
        task: Lookup,
        recipe: Recipe,
        trained: Mapping[str, list[Trained]],
        studies: Mapping[str, Study],
        quick: bool,
        progress: bool,
    ) -> Evidence:
        """Runs the studies on the trained models."""
        print("measuring: every model under every intervention", file=sys.stderr, flush=True)
        found = [run_study(studies[label], task, {label: trained[label]}, progress=progress) for label in trained]
        frame = joined([one for one, _ in found])
        batch = task.sample(studies[TWO].n, studies[TWO].data_seed)
        guesses = {name: float(right.mean()) for name, right in task.sampled_guessing(batch, seed=0).items()}
        return cls(
            task=task,
            recipe=recipe,
            trained=trained,
            studies=studies,
            frame=_with_drawn(frame, task, recipe, trained, batch.tokens),
            notes=pd.concat([said for _, said in found], ignore_index=True),
            exact=task.guessing(),
            sampled=guesses,
            weights=_role_weights(trained[TWO], batch),
            quick=quick,
        )


def _role_weights(trained: list[Trained], batch: Any) -> pd.DataFrame:
    pairs = [
        ("digits", "previous"),
        ("last", "answer"),
        ("last", "other"),
        ("last", "match"),
        ("last", "last"),
        ("last", "digits"),
    ]
    pairs += [("last", "letters"), ("digits", "digits"), ("letters", "letters")]
    tables = [pattern_table(one.model, batch, pairs).assign(model_seed=one.seed) for one in trained]
    return pd.concat(tables, ignore_index=True).rename(columns={"weight_per_edge": "weight"})


def _with_drawn(
    frame: pd.DataFrame, task: Lookup, recipe: Recipe, trained: Mapping[str, list[Trained]], tokens: torch.Tensor
) -> pd.DataFrame:
    """The frame with a column `drawn`: whether the sequence was among those this model seed was trained on."""
    test = _numbers(tokens, task)
    drawn = {}
    for seed in sorted({one.seed for several in trained.values() for one in several}):
        seen = np.concatenate([_numbers(parts["tokens"], task) for parts, _, _ in training_batches(task, recipe, seed)])
        drawn[seed] = np.isin(test, seen)
    clean = frame["condition"] == "clean"
    values = np.full(len(frame), np.nan, dtype=np.float32)
    for seed, found in drawn.items():
        here = (clean & (frame["model_seed"] == seed)).to_numpy()
        values[here] = found[frame.loc[here, "example"].to_numpy()]
    return frame.assign(drawn=values)


def _numbers(tokens: torch.Tensor, task: Lookup) -> np.ndarray:
    """Each sequence as one whole number (26 letters, 10 digits and 9 positions fit in 63 bits)."""
    base = len(task.vocabulary)
    assert base**task.length < 2**63
    return (tokens.numpy().astype(np.int64) * base ** np.arange(task.length, dtype=np.int64)).sum(1)


def parquet(frame: pd.DataFrame) -> bytes:
    """The results frame as Parquet."""
    buffer = io.BytesIO()
    floats = [name for name in frame.columns if frame[name].dtype == np.float32]
    frame.to_parquet(
        buffer,
        index=False,
        compression="zstd",
        compression_level=19,
        use_dictionary=[name for name in frame.columns if name not in floats],
        column_encoding=dict.fromkeys(floats, "BYTE_STREAM_SPLIT"),
    )
    return buffer.getvalue()


def contrasts(frame: pd.DataFrame) -> pd.DataFrame:
    """Each contrast with its interval over models and the paired tests within each model, Holm over all of them."""
    tests = paired_tests(frame, PAIRS, "accuracy")
    rows = []
    for a, b in PAIRS:
        row = contrast(frame, a, b, "accuracy", TWO).iloc[0]
        own = tests[(tests["a"] == a) & (tests["b"] == b)]
        rows.append(
            {
                "a": a,
                "b": b,
                **{
                    name: row[name]
                    for name in ("estimate", "low", "high", "interval", "n_models", "n_examples", "skipped")
                },
                "test": own["test"].iloc[0],
                "models_below_0.05": int((own["p_holm"] < 0.05).sum()),
                "smallest_p_holm": own["p_holm"].min(),
                "largest_p_holm": own["p_holm"].max(),
                "family": int(own["family"].iloc[0]),
            }
        )
    return pd.DataFrame(rows)
