"""Models in double precision whose every size differs, of every kind there is, and what flows through them."""

import torch

from workbench.batch import UNREAD, Batch
from workbench.models.built import build
from workbench.models.config import EncoderDecoderConfig, Mask, ModelConfig
from workbench.sites import CROSS, PARTS, SITES, in_part, split

BOTH_WAYS = Mask(causal=False)


def config_of(**changes):
    return ModelConfig(**{"d_vocab": 11, "n_ctx": 8, "d_model": 6, "n_layers": 2, "n_heads": 2, **changes})


def pair_of(encoder=None, decoder=None, **both):
    """An encoder–decoder whose sides differ in every size that may differ."""
    one = {"d_vocab": 13, "n_ctx": 7, "n_heads": 3, "d_head": 4, "masks": [BOTH_WAYS], **both, **(encoder or {})}
    return EncoderDecoderConfig(encoder=config_of(**one), decoder=config_of(d_head=4, **both, **(decoder or {})))


KINDS = {
    "encoder": config_of(masks=[BOTH_WAYS]),
    "window": config_of(masks=[Mask(window=3)]),
    "dilated window": config_of(masks=[Mask(window=2, dilation=2)], norm="pre"),
    "blocks": config_of(masks=[Mask(block=3)], norm="none"),
    "global": config_of(masks=[Mask(causal=False, window=2, n_global=1)]),
    "a mask a layer": config_of(masks=[Mask(), Mask(window=2)]),
    "sinusoidal": config_of(positions="sinusoidal"),
    "relative": config_of(positions="relative"),
    "relative encoder": config_of(positions="relative", masks=[BOTH_WAYS], norm="pre"),
    "rotary": config_of(positions="rotary", d_head=4),
    "no positions": config_of(positions="none", attn_only=True),
    "grouped": config_of(n_heads=4, n_kv_heads=2, d_head=4, positions="rotary", norm="pre"),
    "patches": config_of(d_patch=5, masks=[BOTH_WAYS], norm="pre"),
    "encoder–decoder": pair_of(),
    "encoder–decoder, pre": pair_of(norm="pre", positions="sinusoidal", decoder={"attn_only": True}),
    "encoder–decoder, none": pair_of({"n_kv_heads": 1}, {"n_kv_heads": 1}, norm="none", positions="rotary"),
    "encoder–decoder, relative": pair_of({"masks": [Mask(causal=False, window=2)]}, positions="relative"),
}
"""Kind → configuration: every mask, every kind of positions, shared keys and values, patches, two stacks."""


def settled(model, seed=100):
    """The model in double precision, with scales, biases and numbers per offset away from 1 and 0."""
    model, generator = model.double().eval(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith((".w", ".b", ".W_rel")):
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


def kind_of(kind, seed=0):
    return settled(build(KINDS[kind], seed))


def model_of(seed=0, **changes):
    """A model in double precision whose norms' scales and biases differ from 1 and 0."""
    return settled(build(config_of(**changes), seed), 100 + seed)


def tokens_of(n=3, length=8, d_vocab=11, seed=0):
    return torch.randint(d_vocab, (n, length), generator=torch.Generator().manual_seed(seed))


def batch_for(config, padding="", n=3, seed=0):
    """A batch that models of a configuration read: 6 positions after a context of 5, or 8; padding "left" or "right"
    in all examples but the last."""
    pair = isinstance(config, EncoderDecoderConfig)
    length = 6 if pair else 8
    tokens, valid = tokens_of(n, length, 11, seed), _valid(n, length, padding)
    context, inputs = None, {}
    if pair:
        words, seen = tokens_of(n, 5, 13, seed + 1), _valid(n, 5, padding)
        context = Batch(words, torch.full_like(words, UNREAD), seen)
    elif config.d_patch:
        inputs["patches"] = torch.randn(n, length - 1, config.d_patch, generator=torch.Generator().manual_seed(seed))
    return Batch(tokens, torch.where(valid, tokens, UNREAD), valid, context=context, inputs=inputs)


def _valid(n, length, padding):
    left_out = [(length - 2 - i) % length if padding and i < n - 1 else 0 for i in range(n)]
    places = torch.arange(length)
    return torch.stack([places >= out if padding == "left" else places < length - out for out in left_out])


def alone(batch, i):
    """One example without its padding."""
    valid, context = batch.valid[i], batch.context
    inputs = {name: value[i][valid[1:]][None] for name, value in batch.inputs.items()}
    tokens, labels = batch.tokens[i][valid][None], batch.labels[i][valid][None]
    return Batch(tokens, labels, context=None if context is None else alone(context, i), inputs=inputs)


def keys_of(model):
    """Every site of a model, in every layer."""
    keys = [(in_part(part, name), None) for part in PARTS for name, row in SITES.items() if not row.layered]
    layered = [(part, name) for part in model.parts for name, row in SITES.items() if row.layered]
    keys += [(in_part(part, name), layer) for part, name in layered if part != "cross" or name in CROSS
             for layer in range(model.parts[part].n_layers)]  # fmt: skip
    return [key for key in keys if hook_name(key) in model.hook_dict]


def hook_name(key):
    part, bare = split(key[0])
    return in_part(part, SITES[bare].hook_name(key[1]))


def close(one, other, tolerance=1e-10):
    """Equal within 1e-10 of the largest value."""
    one, other = one.detach(), other.detach()
    return one.shape == other.shape and bool((one - other).abs().max() <= tolerance * other.abs().max())


def stream(model, tokens, **kwargs):
    return model.run_with_cache(tokens, **kwargs)[1]
