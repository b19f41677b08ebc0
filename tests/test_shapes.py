"""Shapes written in the code are checked by the tests: a wrong one is refused where it is handed over."""

import subprocess
import sys

import pytest
import torch
from jaxtyping import TypeCheckError

from tasks.lookup import Lookup
from workbench import metrics, roles, rows
from workbench.models import masks, positions
from workbench.models.attention import Attention
from workbench.models.config import EncoderDecoderConfig, Mask, ModelConfig
from workbench.models.encoder_decoder import EncoderDecoder
from workbench.models.transformer import Transformer

CONFIG = ModelConfig(d_vocab=16, n_ctx=9, d_model=8, n_layers=1, n_heads=2)
BATCH = Lookup().sample(3, seed=0)
MODEL = Transformer(CONFIG, seed=0)
ENCODER = CONFIG.model_copy(update={"masks": (Mask(causal=False),)})
PAIR = EncoderDecoder(EncoderDecoderConfig(encoder=ENCODER, decoder=CONFIG), seed=0)
PATCHED = Transformer(CONFIG.model_copy(update={"d_patch": 3}), seed=0)


def ones(*shape):
    return torch.ones(shape)


def true(*shape):
    return torch.ones(shape, dtype=torch.bool)


def whole(*shape):
    return torch.zeros(shape, dtype=torch.long)


RIGHT = {
    "cut": (rows.cut, [ones(3, 2, 5), true(3, 2, 5)]),
    "keep_only": (rows.keep_only, [ones(3, 5), true(3, 5), true(3)]),
    "uniform": (rows.uniform, [ones(3, 5), true(3, 5), true(3)]),
    "shuffle": (rows.shuffle, [ones(3, 5), true(3), ones(3, 5)]),
    "attend_to_self": (rows.attend_to_self, [ones(3, 5), true(3), true(3, 5)]),
    "zero": (rows.zero, [ones(3, 5), true(3, 5)]),
    "top_relation": (roles.top_relation, [ones(3, 4, 5), true(3, 4), true(3, 4, 5)]),
    "control_relation": (
        lambda *given: roles.control_relation(*given, seed=0),
        [true(3, 4, 1), true(3, 4, 1), whole(3, 1)],
    ),
    "accuracy": (lambda logits: metrics.accuracy(logits, BATCH), [ones(3, 9, 16)]),
    "scores": (MODEL.blocks[0].attn.scores, [ones(3, 4, 2, 6), ones(3, 5, 2, 6)]),
    "output": (MODEL.blocks[0].attn.output, [ones(3, 4, 2, 4), true(3, 4)]),
    "attention": (MODEL.blocks[0].attn, [ones(3, 4, 8), ones(3, 5, 8), true(3, 4, 5)]),
    "block": (MODEL.blocks[0], [ones(3, 5, 8), true(3, 5, 5), whole(3, 1)]),
    "unembed": (MODEL.unembed, [ones(3, 5, 8)]),
    "model": (MODEL, [whole(3, 9), true(3, 9), whole(3, 1)]),
    "visible": (lambda *given: MODEL.visible(0, *given), [whole(3, 9), true(3, 9)]),
    "places": (masks.places, [true(3, 9)]),
    "mask": (lambda at: masks.visible(Mask(window=2), at), [whole(3, 9)]),
    "sinusoids": (lambda at: positions.sinusoids(at, 4, ones(1)), [whole(3, 9)]),
    "turned": (positions.turned, [ones(3, 9, 2, 4), whole(1, 9)]),
    "by offset": (positions.by_offset, [ones(2, 17), whole(3, 9), whole(1, 9)]),
    "keys": (MODEL.blocks[0].attn.keys, [ones(3, 5, 8)]),
    "mixed": (MODEL.blocks[0].attn.mixed, [ones(3, 2, 4, 5), ones(3, 5, 2, 4)]),
    "crossing": (PAIR.cross.blocks[0], [ones(3, 4, 8), ones(3, 5, 8), true(3, 4, 5)]),
    "pair": (PAIR, [whole(3, 9), whole(3, 5), true(3, 9), true(3, 5), whole(3, 1)]),
    "patched": (lambda tokens, patches: PATCHED(tokens, patches=patches), [whole(3, 9), ones(3, 8, 3)]),
}
WRONG = [
    ("cut", 1, true(2, 3, 5)),
    ("cut", 1, true(5)),
    ("cut", 1, ones(3, 2, 5)),
    ("keep_only", 2, true(1)),
    ("uniform", 1, true(3, 1)),
    ("shuffle", 2, ones(5)),
    ("attend_to_self", 2, true(3, 3)),
    ("zero", 0, whole(3, 5)),
    ("top_relation", 0, ones(3, 5, 4)),
    ("top_relation", 1, true(3, 5)),
    ("control_relation", 1, true(3, 1, 4)),
    ("control_relation", 2, whole(3, 4)),
    ("accuracy", 0, ones(3, 16)),
    ("scores", 1, ones(3, 5, 2, 5)),
    ("scores", 1, ones(1, 5, 2, 6)),
    ("output", 1, true(1, 4)),
    ("attention", 2, true(3, 5, 4)),
    ("attention", 2, true(1, 4, 5)),
    ("attention", 2, ones(3, 4, 5)),
    ("block", 1, true(3, 1, 5)),
    ("block", 2, whole(1, 1)),
    ("unembed", 0, ones(5, 8)),
    ("model", 0, ones(3, 9)),
    ("model", 1, whole(3, 9)),
    ("model", 2, whole(1, 1)),
    ("visible", 1, true(1, 9)),
    ("places", 0, whole(3, 9)),
    ("mask", 0, whole(9)),
    ("sinusoids", 0, ones(3, 9)),
    ("turned", 1, whole(3, 8)),
    ("turned", 0, ones(3, 9, 4)),
    ("by offset", 0, ones(17)),
    ("by offset", 1, whole(9)),
    ("keys", 0, ones(5, 8)),
    ("mixed", 1, ones(3, 4, 2, 4)),
    ("crossing", 1, ones(2, 5, 8)),
    ("crossing", 2, true(3, 5, 4)),
    ("pair", 3, true(3, 9)),
    ("pair", 4, whole(1, 1)),
    ("patched", 1, ones(3, 24)),
]


@pytest.mark.parametrize("name", RIGHT)
def test_right_shapes_are_taken(name):
    function, given = RIGHT[name]
    function(*given)


@pytest.mark.parametrize(("name", "place", "value"), WRONG, ids=lambda value: getattr(value, "shape", value))
def test_a_wrong_shape_is_refused_where_it_is_handed_over(name, place, value):
    function, given = RIGHT[name]
    with pytest.raises(TypeCheckError, match="typechecking"):
        function(*given[:place], value, *given[place + 1 :])


def test_every_function_here_has_a_wrong_case():
    assert {name for name, _, _ in WRONG} == set(RIGHT)


def test_outside_the_tests_nothing_is_checked_and_nothing_slows_down():
    program = """
import torch
from workbench import rows
assert not hasattr(rows.cut, "__wrapped__")
assert rows.cut(torch.ones(3, 5), torch.ones(5, dtype=torch.bool)).shape == (3, 5)
import sys
assert "beartype" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_in_the_tests_every_shaped_function_is_checked():
    for function in (rows.softmax, metrics.loss, roles.top_relation, Attention.forward, Transformer.forward):
        assert hasattr(function, "__wrapped__")
