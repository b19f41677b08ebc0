"""The same model without the workbench: a decoder in plain PyTorch, and TransformerLens' native one."""

from __future__ import annotations

import math
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from workbench import ModelConfig, Transformer


class PlainLayer(nn.Module):
    """Attention with its three projections in one product, and an MLP; `scores` and `pattern` are where hooks stand."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        width, inside = config.d_model, config.n_heads * config.d_head
        self.config = config
        self.qkv, self.out = nn.Linear(width, 3 * inside), nn.Linear(inside, width)
        self.into, self.back = nn.Linear(width, config.d_mlp), nn.Linear(config.d_mlp, width)
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.scores, self.pattern = nn.Identity(), nn.Identity()
        self.register_buffer("hidden", torch.ones(config.n_ctx, config.n_ctx, dtype=torch.bool).triu(1))
        self.act = nn.ReLU() if config.act_fn == "relu" else nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        if self.config.norm == "pre":
            x = x + self.attention(self.ln1(x))
            return x + self.back(self.act(self.into(self.ln2(x))))
        x = self.ln1(x + self.attention(x))
        return self.ln2(x + self.back(self.act(self.into(x))))

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = rearrange(
            self.qkv(x), "b pos (three head d) -> three b head pos d", three=3, head=self.config.n_heads
        )
        n = x.shape[1]
        hidden: Any = self.hidden
        scores = (q @ k.mT) / math.sqrt(self.config.d_head)
        scores = self.scores(scores.masked_fill(hidden[:n, :n], -math.inf))
        z = self.pattern(scores.softmax(-1)) @ v
        return self.out(rearrange(z, "b head pos d -> b pos (head d)"))


class PlainDecoder(nn.Module):
    """A decoder with learned positions as one writes it in PyTorch; `of` gives it a model's weights.

    `forward(tokens)` [batch pos] gives logits [batch pos d_vocab].
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.tokens, self.places = (
            nn.Embedding(config.d_vocab, config.d_model),
            nn.Embedding(config.n_ctx, config.d_model),
        )
        self.blocks = nn.ModuleList(PlainLayer(config) for _ in range(config.n_layers))
        self.ln = nn.LayerNorm(config.d_model) if config.norm == "pre" else nn.Identity()
        self.unembed = nn.Linear(config.d_model, config.d_vocab)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.unembed(self.ln(x))


def plain(model: Transformer) -> PlainDecoder:
    """The plain decoder with a model's weights, in eval mode. Raises ValueError for a model that it cannot be."""
    config, state = model.config, model.state_dict()
    _check(config)
    out = PlainDecoder(config)
    given = {"tokens.weight": state["embed.W_E"], "places.weight": state["pos_embed.W_pos"]}
    given |= {"unembed.weight": state["unembed.W_U"].T, "unembed.bias": state["unembed.b_U"]}
    if config.norm == "pre":
        given |= {"ln.weight": state["ln_final.w"], "ln.bias": state["ln_final.b"]}
    for layer in range(config.n_layers):
        own = {name: state[f"blocks.{layer}.{name}"] for name in _NAMES}
        qkv = [_rows(own[f"attn.W_{one}"]) for one in "QKV"]
        made = {
            "qkv.weight": torch.cat(qkv), "qkv.bias": torch.cat([own[f"attn.b_{one}"].flatten() for one in "QKV"]),
            "out.weight": rearrange(own["attn.W_O"], "head d width -> width (head d)"), "out.bias": own["attn.b_O"],
            "into.weight": own["mlp.W_in"].T, "into.bias": own["mlp.b_in"],
            "back.weight": own["mlp.W_out"].T, "back.bias": own["mlp.b_out"],
            "ln1.weight": own["ln1.w"], "ln1.bias": own["ln1.b"], "ln2.weight": own["ln2.w"], "ln2.bias": own["ln2.b"],
        }  # fmt: skip
        given |= {f"blocks.{layer}.{name}": value for name, value in made.items()}
    missing = out.load_state_dict(given, strict=False).missing_keys
    assert all(name.endswith(".hidden") for name in missing)
    return out.eval()


_NAMES = (
    *(f"attn.{kind}_{one}" for kind in "Wb" for one in "QKVO"),
    *("mlp.W_in", "mlp.b_in", "mlp.W_out", "mlp.b_out", "ln1.w", "ln1.b", "ln2.w", "ln2.b"),
)


def native(model: Transformer) -> Any:
    """TransformerLens' native bridge with a pre-norm model's weights, in eval mode. It has no bias at the output, so
    that the model's must be 0."""
    from analyses.tools.native_bridge import TransformerBridge

    config = model.config
    _check(config)
    if config.norm != "pre" or bool(model.unembed.b_U.any()):
        raise ValueError(
            f"TransformerLens' native model is pre-norm and has no output bias; this one has norm={config.norm!r}"
        )
    boot: Any = TransformerBridge.boot_native  # type: ignore[attr-defined]  # TransformerLens sets it on import
    bridge = boot(
        {
            "n_layers": config.n_layers, "d_model": config.d_model, "n_ctx": config.n_ctx, "d_head": config.d_head,
            "n_heads": config.n_heads, "d_mlp": config.d_mlp, "d_vocab": config.d_vocab, "act_fn": config.act_fn,
            "normalization_type": "LN",
        }
    ).eval()  # fmt: skip
    _fill(bridge, plain(model))
    return bridge


@torch.no_grad()
def _fill(bridge: Any, known: PlainDecoder) -> None:
    bridge.embed.weight.copy_(known.tokens.weight)
    bridge.pos_embed.weight.copy_(known.places.weight)
    bridge.unembed.weight.copy_(known.unembed.weight)
    pairs = [(bridge.ln_final, known.ln)]
    for block, own in zip(bridge.blocks, known.blocks, strict=True):
        parts: Any = own
        pairs += [(block.ln1, parts.ln1), (block.ln2, parts.ln2), (block.attn.o, parts.out)]
        pairs += [(getattr(block.mlp, "in"), parts.into), (block.mlp.out, parts.back)]
        weights, biases = parts.qkv.weight.chunk(3), parts.qkv.bias.chunk(3)
        for name, weight, bias in zip("qkv", weights, biases, strict=True):
            linear = getattr(block.attn, name)
            linear.weight.copy_(weight)
            linear.bias.copy_(bias)
    for to, of in pairs:
        to.weight.copy_(of.weight)
        to.bias.copy_(of.bias)


def twin(config: ModelConfig, seed: int) -> Transformer:
    """A seeded untrained model of that shape which the native bridge can be, too: pre-norm, no output bias."""
    model = Transformer(config.model_copy(update={"norm": "pre"}), seed=seed)
    with torch.no_grad():
        model.unembed.b_U.zero_()
    return model


def _rows(weight: Tensor) -> Tensor:
    return rearrange(weight, "head width d -> (head d) width")


def _check(config: ModelConfig) -> None:
    plainly = (
        config.positions == "learned"
        and config.norm in ("pre", "post")
        and config.n_kv_heads == config.n_heads
        and not (config.attn_only or config.d_patch)
        and all(mask.model_dump(exclude_defaults=True) == {} for mask in config.masks)
        and config.act_fn in ("relu", "gelu")
    )
    if not plainly:
        raise ValueError(
            f"the plain decoder has learned positions, full causal masks, norms, MLPs with relu or gelu and no grouped "
            f"heads; this model is {config!r}"
        )
