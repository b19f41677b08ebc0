"""A Hugging Face model under interventions: its parts, its points, its logits, what its rows see."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from workbench import witness
from workbench.anatomy import Part
from workbench.batch import Batch
from workbench.hooks import evaluating
from workbench.models.families import FAMILIES, Stack, Unsupported
from workbench.models.interface import register, switched
from workbench.models.passing import Passing, Place
from workbench.models.reading import inputs_of
from workbench.models.specimen import shortened, specimen
from workbench.proof import TOLERANCE
from workbench.sites import CROSS, SITES, in_part

MOST_KNOWN = 256
"""Kinds of row (lengths and padding) whose masks are remembered."""


class Wrapped(nn.Module):
    """A Hugging Face model under interventions; made by `wrap`.

    inner: the model itself. example: the batch on which its sites are probed. Sites that it does not have are in
    `absent`, with the reason.
    """

    prover = witness
    reads_only = False
    attn_only = False

    def __init__(self, inner: Any, tokenizer: Any, example: Batch | None):
        super().__init__()
        self.inner, self.tokenizer = inner, tokenizer
        self.kind = inner.config.model_type
        self.family = FAMILIES[self.kind]
        self.stacks = self._listed()
        self.by_position, self.single_softmax = True, False
        self.hook_dict: dict[str, HookPoint] = {}
        self._seen: dict[tuple, dict[Place, Tensor]] = {}
        self.d_vocab = getattr(inner.get_input_embeddings(), "num_embeddings", 0)
        two = "encoder" in self.family.stacks
        parameter = next(inner.parameters())
        self.dtype = parameter.dtype
        self.example = (example or specimen(inner.config, inner.main_input_name, self.d_vocab, two)).to(
            parameter.device
        )
        if example is None:
            self.example = self.example.with_inputs(
                **{k: v.to(parameter.dtype) for k, v in self.example.inputs.items()}
            )
        self.d_vocab = self.d_vocab or self.example.tokens.shape[1]
        register()
        self._check()
        self.absent = self._absent()
        self.hook_dict = self._points()

    def _listed(self) -> list[tuple[str, Stack, list[nn.Module]]]:
        base = self.inner.base_model
        return [(part, stack, stack.listed(base)) for part, stack in self.family.stacks.items()]

    @property
    def embedding(self) -> nn.Module | None:
        """The token embedding at the bottom of the only stack."""
        single = self.inner.main_input_name == "input_ids" and "" in self.family.stacks
        return self.inner.get_input_embeddings() if single else None

    @property
    def attentions(self) -> dict[int, list[Place]]:
        """The places of each attention module, by its id, in the order of its calls."""
        out: dict[int, list[Place]] = {}
        for part, stack, blocks in self.stacks:
            for layer, block in enumerate(blocks):
                out.setdefault(id(block.get_submodule(stack.attention.attn)), []).append((part, layer))
                if stack.cross is not None:
                    out.setdefault(id(block.get_submodule(stack.cross.attn)), []).append(("cross", layer))
        return out

    def _absent(self) -> dict[str, str]:
        config = self.inner.config
        out = {"pos_embed": "The family tells positions in its own way"}
        if self.embedding is None:
            out["embed"] = "The model has no single token embedding at the bottom of one stack"
        for part, stack, blocks in self.stacks:
            names = dict(blocks[0].named_modules())
            if stack.mlp_in not in names or not stack.mlp_in:
                out[in_part(part, "mlp_pre")] = "Its MLP is gated: two linear maps stand where one would"
            if stack.parallel and getattr(config, stack.parallel):
                out[in_part(part, "resid_mid")] = (
                    "Attention and MLP read the same stream here (parallel), so that there is none between them"
                )
            if getattr(config, "chunk_size_feed_forward", 0):
                for name in ("mlp_pre", "mlp_post", "mlp_out", "resid_post"):
                    out[in_part(part, name)] = "The MLP is computed in chunks of positions (chunk_size_feed_forward)"
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
        with evaluating(self), torch.no_grad():
            with switched(self.inner, None, "eager"):
                eager = self._called(self.example)
            self.by_position, self.n_out = eager.ndim == 3, eager.shape[-1]
            passing, ours = self._pass(self.example)
            if eager.dtype == torch.float64 and not torch.equal(eager, ours):
                # Some families take the softmax in float32 though everything else is in float64.
                self.single_softmax = True
                passing, ours = self._pass(self.example)
            self._check_output(eager)
        expected = sum(map(len, self.attentions.values()))
        if (calls := sum(passing.calls.values())) != expected:
            raise Unsupported(f"{self.kind} called its attention function {calls} times in a pass, not {expected}")
        exact = eager.dtype in (torch.float32, torch.float64)
        apart = float((eager - ours).abs().max())
        if not apart <= (0.0 if exact else TOLERANCE[eager.dtype] * float(eager.abs().max())):
            raise Unsupported(
                f"{self.kind}: the logits under this workbench's attention differ from the eager model's by {apart:.3g}"
            )
        layers: dict[str, int] = {}
        for part, layer in passing.heads:
            layers[part] = max(layers.get(part, 0), layer + 1)
        self.parts = {part: Part(n, *passing.heads[part, 0]) for part, n in layers.items()}

    def _check_output(self, eager: Tensor) -> None:
        """Logits are [batch pos d_vocab], or [batch class] with as many classes for a shorter example."""
        if eager.ndim not in (2, 3):
            raise Unsupported(
                f"{type(self.inner).__name__} gives logits {list(eager.shape)}, neither by position nor one"
            )
        told = eager.ndim == 2 and not self.example.inputs
        if told and self._called(shortened(self.example)).shape[-1] != eager.shape[-1]:
            raise Unsupported(f"{type(self.inner).__name__} gives one number a position, which is no distribution")

    def _called(self, batch: Batch) -> Tensor:
        """The logits as the model gives them. Raises ValueError for more positions than it can read."""
        inputs = inputs_of(self.inner, self.family, batch, not self.by_position)
        try:
            out = self.inner(**inputs)
        except IndexError as error:
            if "index out of range" not in str(error):
                raise
            raise ValueError(
                f"{self.kind} cannot read {batch.tokens.shape[1]} positions of such tokens ({error}); its "
                f"configuration allows {getattr(self.inner.config, 'max_position_embeddings', 'fewer')}"
            ) from error
        if getattr(out, "logits", None) is None:
            there = f" (it has {', '.join(out.keys())})" if hasattr(out, "keys") else ""
            raise Unsupported(
                f"{type(self.inner).__name__} gives no logits{there}; load it with an output layer, as "
                "AutoModelForCausalLM or AutoModelForMaskedLM do"
            )
        return out.logits

    def _pass(self, batch: Batch) -> tuple[Passing, Tensor]:
        for (part, _, blocks), (_, _, now) in zip(self.stacks, self._listed(), strict=True):
            if len(blocks) != len(now) or any(one is not other for one, other in zip(blocks, now, strict=True)):
                raise RuntimeError(f"{self.kind}: the layers{part and ' of the '}{part} changed; wrap the model again")
        if (dtype := next(self.inner.parameters()).dtype) != self.dtype:
            raise RuntimeError(f"{self.kind}: it was {self.dtype} when it was wrapped, and is {dtype}; wrap it again")
        passing = Passing(self)
        with switched(self.inner, passing.attend), passing.installed():
            logits = self._called(batch)
        for (part, layer), hidden in passing.hidden.items():
            dest, source = (side.tokens.shape[1] for side in batch.sides(part))
            if tuple(hidden.shape[-2:]) != (dest, source):
                raise ValueError(
                    f"{self.kind} computed {hidden.shape[-2]} × {hidden.shape[-1]} positions in layer {layer}"
                    f"{part and ' of its part '}{part}, and the batch has {dest} × {source}: it needs a token (any "
                    "number where inputs take their place) for every position that the model computes"
                )
        return passing, logits

    def logits(self, batch: Batch, read: Tensor | None) -> Tensor:
        """[batch pos d_vocab], or [batch read d_vocab]; one output an example is said at every position."""
        passing, logits = self._pass(batch)
        keys, at = _kinds(batch)
        for i, key in enumerate(keys):
            for place, seen in self._seen.get(key, {}).items():
                hidden = passing.hidden.get(place)  # None where a prefix stands in the layer's place
                if hidden is not None and not bool((~hidden[at == i].all(1) == seen).all()):
                    raise Unsupported(f"{self.kind}: what a row of layer {place[1]} sees differs by what is in it")
        if logits.ndim == 2:
            logits = logits[:, None].expand(-1, batch.tokens.shape[1], -1)
        if read is None:
            return logits
        return logits[torch.arange(len(batch), device=logits.device)[:, None], read]

    def check(self, batch: Batch) -> None:
        """Raises ValueError for a batch that the model would misread: see `reading.inputs_of`; and where it computes
        another number of positions than the batch has."""
        for part in self.parts:
            self.sees(batch, part, 0)

    def sees(self, batch: Batch, part: str, layer: int) -> Tensor:
        """Which sources each destination reads, [batch dest source], as the model's own masks say."""
        keys, at = _kinds(batch)
        if new := [i for i, key in enumerate(keys) if key not in self._seen]:
            chosen = torch.tensor([int((at == i).nonzero()[0]) for i in new], device=batch.device)
            with evaluating(self), torch.no_grad():
                passing, _ = self._pass(batch.select(chosen))
            if len(self._seen) + len(new) > MOST_KNOWN:
                self._seen = {key: self._seen[key] for key in keys if key in self._seen}
            for row, i in enumerate(new):
                self._seen[keys[i]] = {place: ~hidden[row].all(0) for place, hidden in passing.hidden.items()}
        seen = torch.stack([self._seen[key][part, layer] for key in keys])[at]
        readers, sources = batch.sides(part)
        return seen & readers.valid[:, :, None] & sources.valid[:, None, :]


def _kinds(batch: Batch) -> tuple[list[tuple], Tensor]:
    """What masks depend on, a key for each kind of row (lengths and padding), and each example's kind."""
    valid = batch.valid if batch.context is None else torch.cat([batch.valid, batch.context.valid], 1)
    rows, at = torch.unique(valid, dim=0, return_inverse=True)
    lengths = (batch.tokens.shape[1], str(batch.device))
    return [(*lengths, bytes(row)) for row in rows.to(torch.uint8).tolist()], at
