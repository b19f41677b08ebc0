"""What `run` and its kin are handed and hand on."""

from pathlib import Path

import pytest
import torch
from small import small

from tasks.lookup import Lookup
from workbench import (
    Batch,
    Edges,
    ModelConfig,
    Recipe,
    edge_weights,
    pattern_table,
    run_study,
    train,
    train_many,
)
from workbench.arguments import check_finite, is_finite
from workbench.checkpoints import Trained

LARGEST = torch.finfo(torch.float32).max


@pytest.mark.parametrize("values", [[0.0, -1.0], [LARGEST, LARGEST], [LARGEST, -LARGEST, LARGEST], []], ids=str)
def test_numbers_are_finite_though_their_sum_may_not_be(values):
    assert is_finite(torch.tensor(values))
    check_finite(torch.tensor(values))


@pytest.mark.parametrize(
    "values", [[0.0, torch.nan], [torch.inf, 1.0], [torch.inf, -torch.inf], [LARGEST, LARGEST, -torch.inf]], ids=str
)
def test_one_number_that_is_not_finite_is_found_and_its_example_named(values):
    assert not is_finite(torch.tensor(values))
    with pytest.raises(ValueError, match=r"logits are not finite in 1 of 2 examples \(1\)"):
        check_finite(torch.stack([torch.ones(len(values)), torch.tensor(values)]))


# What is of another kind

MODEL, BATCH = small(), Lookup().sample(4, seed=0)
CONFIG = ModelConfig(d_vocab=16, n_ctx=9, d_model=8, n_layers=1, n_heads=1)
STEPS = Recipe(steps=2, batch_size=4, warmup=1)
ELSEWHERE = Trained(MODEL, 0, Path(), [], {})
OF_ANOTHER_KIND = {
    "a config of a mapping": (lambda: train(Lookup(), CONFIG.model_dump(), STEPS, 0), "make it a ModelConfig"),
    "a task's class": (lambda: train(Lookup, CONFIG, STEPS, 0), r"make one, as Lookup\(\)"),
    "a task's name": (lambda: train("lookup", CONFIG, STEPS, 0), "the task is 'lookup'"),
    "steps for a recipe": (lambda: train(Lookup(), CONFIG, 100, 0), "the recipe is a int"),
    "a number of seeds": (lambda: train_many(Lookup(), CONFIG, STEPS, seeds=3), r"range\(3\) for so many, \[3\]"),
    "a study of a mapping": (lambda: run_study({"conditions": {}}, Lookup(), {"m": [MODEL]}), "make it a Study"),
    "tokens of a list": (lambda: Batch([[1, 2]], [[1, 2]]), r"tokens are a list; make them a tensor \[batch pos\]"),
    "labels of a list": (lambda: Batch(BATCH.tokens, [[1, 2]]), "labels are a list"),
    "edges without names": (lambda: edge_weights(MODEL, BATCH, Edges(layer=0)), "edges come by name"),
    "weights of a trained model": (lambda: edge_weights(ELSEWHERE, BATCH, {}), "pass its `.model`"),
    "a table of a trained model": (lambda: pattern_table(ELSEWHERE, BATCH), "pass its `.model`"),
    "a table of a list": (lambda: pattern_table([MODEL], BATCH), "list is no model of this workbench"),
}


@pytest.mark.parametrize("what", OF_ANOTHER_KIND)
def test_what_is_of_another_kind_is_refused_in_words(what):
    call, why = OF_ANOTHER_KIND[what]
    with pytest.raises(TypeError, match=why):
        call()
