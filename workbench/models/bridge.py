"""wrap(): models that others trained, made to run under interventions as our own do."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint
from transformer_lens.HookedRootModule import HookedRootModule

from workbench import witness
from workbench.anatomy import Part
from workbench.batch import Batch
from workbench.hooks import evaluating
from workbench.models.families import FAMILIES, Family, Stack, Unsupported
from workbench.models.hooked import Hooked
from workbench.models.interface import plain, register, switched
from workbench.models.passing import Passing, Place
from workbench.models.specimen import specimen
from workbench.proof import TOLERANCE
from workbench.sites import CROSS, SITES, in_part


def wrap(model: Any, tokenizer: Any = None, *, example: Batch | None = None) -> Any:
    """A model that others trained, as `run`, `record` and studies take it: same sites, same interventions.

    model: a Hugging Face model with an output layer, a TransformerBridge, or any HookedRootModule with TransformerLens'
        hook names. Nothing about it changes: the attention is switched inside `run` and `record` only, on a copy of its
        configuration, and hooks of ours come off after each pass.
    tokenizer: kept as `wrapped.tokenizer`, for `Batch.from_texts`.
    example: a batch that the model can read, on which sites are probed; made from the configuration by default.

    Raises `Unsupported` for a family that ignores transformers' attention interface or is not described here, and where
    the wrapped model's logits are not those of the eager model, bit for bit.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> from workbench import Edges, cut, run
    >>> config = GPT2Config(vocab_size=9, n_positions=8, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    >>> model = wrap(GPT2LMHeadModel(config))
    >>> run(model, model.example, [cut(Edges(layer=1, head=0), empty="no-update")]).logits.shape
    torch.Size([2, 6, 9])
    """
    if all(hasattr(model, name) for name in ("parts", "sees", "logits", "hook_dict")):
        return model
    if isinstance(model, HookedRootModule) or hasattr(model, "hook_dict"):
        return Hooked(model, tokenizer, example)
    if not (isinstance(model, nn.Module) and hasattr(model, "config") and hasattr(model, "base_model")):
        raise TypeError(
            f"{type(model).__name__} cannot be wrapped; hand over a Hugging Face model, a TransformerBridge or a "
            "HookedRootModule"
        )
    return Wrapped(model, tokenizer, example)


class Wrapped(nn.Module):
    """A Hugging Face model under interventions; made by `wrap`.

    inner: the model itself. example: the batch on which its sites are probed. Sites that it does not have are in
    `absent`, with the reason.
    """

    prover = witness
    reads_only = False

    def __init__(self, inner: Any, tokenizer: Any, example: Batch | None):
        super().__init__()
        self.inner, self.tokenizer = inner, tokenizer
        base, config = inner.base_model, inner.config
        self.kind = config.model_type
        if self.kind not in FAMILIES:
            raise Unsupported(_unknown_family(inner, example))
        if base is inner and not hasattr(inner, "get_output_embeddings"):
            raise Unsupported(f"{type(inner).__name__} has no output layer")
        self.family: Family = FAMILIES[self.kind]
        self.main_input = inner.main_input_name
        self.embedding = inner.get_input_embeddings() if self._reads_tokens and "" in self.family.stacks else None
        self.stacks: list[tuple[str, Stack, list[nn.Module]]] = [
            (part, stack, stack.listed(base)) for part, stack in self.family.stacks.items()
        ]
        self.attentions = _attentions(self.stacks)
        self.attn_only, self.absent = False, self._absent()
        self._seen: dict[tuple, dict[Place, Tensor]] = {}
        words = inner.get_input_embeddings()
        self.d_vocab = getattr(words, "num_embeddings", 0)
        self.example = example or specimen(config, self.main_input, self.d_vocab, "encoder" in self.family.stacks)
        if not self.d_vocab:
            self.d_vocab = self.example.tokens.shape[1]
        self.hook_dict: dict[str, HookPoint] = {}
        register()
        self._check()

    @property
    def _reads_tokens(self) -> bool:
        return self.main_input == "input_ids"

    def _absent(self) -> dict[str, str]:
        out = {"pos_embed": "The family tells positions in its own way"}
        if self.embedding is None:
            out["embed"] = "The model has no single token embedding at the bottom of one stack"
        for part, stack, _ in self.stacks:
            if not stack.mlp_in:
                out[in_part(part, "mlp_pre")] = "Its MLP is gated: two linear maps stand where one would"
            if stack.parallel and getattr(self.inner.config, stack.parallel):
                out[in_part(part, "resid_mid")] = (
                    "Attention and MLP read the same stream here (parallel), so that there is none between them"
                )
        return out

    def _points(self) -> dict[str, HookPoint]:
        names = [] if "embed" in self.absent else ["hook_embed"]
        for part, shape in self.parts.items():
            for site in SITES.values():
                there = site.layered and in_part(part, site.name) not in self.absent
                if there and (part != "cross" or site.name in CROSS):
                    names += [in_part(part, site.hook_name(layer)) for layer in range(shape.n_layers)]
        return {name: HookPoint() for name in names}

    def _check(self) -> None:
        """One pass with the family's own eager attention, one with ours: same logits, and every attention called."""
        device = next(self.inner.parameters()).device
        example = self.example = self.example.to(device)
        with evaluating(self), torch.no_grad():
            with switched(self.inner, None, "eager"):
                eager = _logits(self.inner, self._inputs(example))
            passing, ours = self._pass(example)
        expected = sum(map(len, self.attentions.values()))
        if (calls := sum(passing.calls.values())) != expected:
            raise Unsupported(f"{self.kind} called its attention function {calls} times in a pass, not {expected}")
        exact = eager.dtype in (torch.float32, torch.float64)
        apart = float((eager - ours).abs().max())
        if apart > (0.0 if exact else TOLERANCE[eager.dtype] * float(eager.abs().max())):
            raise Unsupported(
                f"{self.kind}: the logits under this workbench's attention differ from the eager model's by {apart:.3g}"
            )
        layers: dict[str, int] = {}
        for part, layer in passing.heads:
            layers[part] = max(layers.get(part, 0), layer + 1)
        self.parts = {part: Part(n, *passing.heads[part, 0]) for part, n in layers.items()}
        self.by_position, self.n_out = eager.ndim == 3, eager.shape[-1]
        self.hook_dict = self._points()

    def _pass(self, batch: Batch) -> tuple[Passing, Tensor]:
        passing = Passing(self)
        inputs = self._inputs(batch)
        with switched(self.inner, passing.attend), passing.installed():
            return passing, _logits(self.inner, inputs)

    def logits(self, batch: Batch, read: Tensor | None) -> Tensor:
        """[batch pos d_vocab], or [batch read d_vocab]; one output an example is said at every position."""
        passing, logits = self._pass(batch)
        known = self._seen.get(_shape_of(batch))
        if known is not None and len(known[next(iter(known))]) == 1:
            self._check_masks(passing, known)
        if logits.ndim == 2:
            logits = logits[:, None].expand(-1, batch.tokens.shape[1], -1)
        if read is None:
            return logits
        return logits[torch.arange(len(batch), device=logits.device)[:, None], read]

    def _check_masks(self, passing: Passing, known: dict[Place, Tensor]) -> None:
        for place, hidden in passing.hidden.items():
            if not torch.equal(~hidden.all(1), known[place].expand(len(hidden), -1, -1)):
                raise Unsupported(f"{self.kind}: the mask of layer {place[1]} differs from example to example")

    def sees(self, batch: Batch, part: str, layer: int) -> Tensor:
        """Which sources each destination reads, [batch dest source], as the model's own masks say."""
        key = _shape_of(batch)
        padding = _padding(batch)
        at = None if padding is None else torch.unique(padding, dim=0, return_inverse=True)[1]
        if key not in self._seen:
            chosen = [0] if at is None else [int((at == i).nonzero()[0]) for i in range(int(at.max()) + 1)]
            with evaluating(self), torch.no_grad():
                passing, _ = self._pass(batch.select(torch.tensor(chosen, device=batch.device)))
            self._seen = {key: {place: ~hidden.all(1) for place, hidden in passing.hidden.items()}}
        seen = self._seen[key][part, layer]
        seen = seen.expand(len(batch), -1, -1) if at is None else seen[at]
        readers, sources = batch.sides(part)
        return seen & readers.valid[:, :, None] & sources.valid[:, None, :]

    def _inputs(self, batch: Batch) -> dict[str, Any]:
        """What the model's forward is called with."""
        inputs: dict[str, Any] = {"return_dict": True}
        reads = batch if batch.context is None else batch.context
        if self.main_input not in batch.inputs:
            inputs |= self._sequence(reads, "")
        if batch.context is not None:
            inputs |= self._sequence(batch, "decoder_")
        inputs |= batch.inputs
        known = inspect.signature(self.inner.forward).parameters
        if "use_cache" in known:
            inputs["use_cache"] = False
        if unknown := sorted(set(batch.inputs) - set(known)):
            raise ValueError(f"{type(self.inner).__name__} takes no input {unknown[0]!r}")
        return {name: value for name, value in inputs.items() if name in known}

    def _sequence(self, batch: Batch, prefix: str) -> dict[str, Tensor]:
        if not prefix and not self._reads_tokens:
            raise ValueError(f"{self.kind} reads {self.main_input}: hand it over as Batch(inputs={{...}})")
        tokens, valid = batch.tokens, batch.valid
        said = {f"{prefix}input_ids": tokens, f"{prefix}attention_mask": valid.long()}
        count = (valid.cumsum(1) - 1).clamp_min(0)
        moved = bool(((count != torch.arange(tokens.shape[1], device=tokens.device)) & valid).any())
        if self.family.positions == "tokens":
            said[f"{prefix}input_ids"] = tokens.masked_fill(~valid, self.inner.config.pad_token_id)
        elif moved and self.family.positions == "ids":
            said[f"{prefix}position_ids"] = count
        elif moved and self.family.positions == "places":
            raise ValueError(f"{self.kind} counts positions from the start of the row; pad on the right")
        return said


def _logits(inner: Any, inputs: dict[str, Any]) -> Tensor:
    out = inner(**inputs)
    if getattr(out, "logits", None) is None:
        raise Unsupported(
            f"{type(inner).__name__} gives no logits (it has {', '.join(out.keys())}); load it with an output layer, "
            "as AutoModelForCausalLM or AutoModelForMaskedLM do"
        )
    return out.logits


def _attentions(stacks: Sequence[tuple[str, Stack, list[nn.Module]]]) -> dict[int, list[Place]]:
    """The places of each attention module, in the order of its calls."""
    out: dict[int, list[Place]] = {}
    for part, stack, blocks in stacks:
        for layer, block in enumerate(blocks):
            out.setdefault(id(block.get_submodule(stack.attention.attn)), []).append((part, layer))
            if stack.cross is not None:
                out.setdefault(id(block.get_submodule(stack.cross.attn)), []).append(("cross", layer))
    return out


def _padding(batch: Batch) -> Tensor | None:
    """The padding [batch pos] of a batch and its context; None where there is none."""
    valid = batch.valid if batch.context is None else torch.cat([batch.valid, batch.context.valid], 1)
    return None if bool(valid.all()) else valid


def _shape_of(batch: Batch) -> tuple:
    """What a mask depends on: lengths, and padding."""
    padding = _padding(batch)
    lengths = (batch.tokens.shape[1], 0 if batch.context is None else batch.context.tokens.shape[1])
    return (*lengths, str(batch.device), None if padding is None else padding.cpu().numpy().tobytes())


def _unknown_family(inner: Any, example: Batch | None) -> str:
    """Why a family is refused, with the number of times that it called our attention function."""
    kind, calls = inner.config.model_type, 0

    def count(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        nonlocal calls
        calls += 1
        return plain(*args, **kwargs)

    register()
    known = f"families described: {', '.join(sorted(FAMILIES))}"
    try:
        words = inner.get_input_embeddings()
        batch = example or specimen(inner.config, inner.main_input_name, getattr(words, "num_embeddings", 0), False)
        with evaluating(inner), torch.no_grad(), switched(inner, count):
            inner(**({"input_ids": batch.tokens} if not batch.inputs else dict(batch.inputs)))
    except Exception as error:
        return f"the family {kind!r} is not described here, and a trial of it failed ({error}); {known}"
    if calls:
        return (
            f"the family {kind!r} is not described here, though it called the attention function {calls} times; {known}"
        )
    return (
        f"the family {kind!r} never calls the attention function that its configuration names (0 calls in a pass): "
        f"an edit of its scores or weights would do nothing; {known}"
    )
