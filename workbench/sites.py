"""THE table of sites: a tensor that can be recorded or edited, its hook, its axes, and which location may name it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from workbench.nearest import nearest


@dataclass(frozen=True)
class Site:
    """One row of the table.

    hook: TransformerLens' name, with `{layer}`; axes: einops words; location: what may name it in an intervention (only
    `custom` reaches the others); positions: whether its `pos` or `dest` axis counts destinations, of which the last
    layer computes only the read ones with `positions="read"`, or sources.
    """

    name: str
    hook: str
    axes: str
    location: Literal["edges", "heads", "stream"] | None
    positions: Literal["dest", "source"]

    @property
    def layered(self) -> bool:
        """Whether the site exists once a layer."""
        return "{layer}" in self.hook

    def hook_name(self, layer: int | None) -> str:
        """The hook's name in one layer."""
        return self.hook.format(layer=layer)

    @property
    def head_axis(self) -> int | None:
        """Where the head axis stands, or None."""
        words = self.axes.split()
        return words.index("head") if "head" in words else None

    @property
    def position_axis(self) -> int:
        """Where the axis stands that counts the tensor's own positions (`dest` of a pattern)."""
        words = self.axes.split()
        return words.index("dest") if "dest" in words else words.index("pos")


_VECTOR, _HEADS, _ROWS = "batch pos d_model", "batch pos head d_head", "batch head dest source"
_BLOCK, _ATTN, _MLP = "blocks.{layer}.", "blocks.{layer}.attn.", "blocks.{layer}.mlp."

SITES: dict[str, Site] = {
    site.name: site
    for site in (
        Site("embed", "hook_embed", _VECTOR, None, "source"),
        Site("pos_embed", "hook_pos_embed", _VECTOR, None, "source"),
        Site("resid_pre", _BLOCK + "hook_resid_pre", _VECTOR, "stream", "source"),
        Site("q", _ATTN + "hook_q", _HEADS, "heads", "dest"),
        Site("k", _ATTN + "hook_k", _HEADS, "heads", "source"),
        Site("v", _ATTN + "hook_v", _HEADS, "heads", "source"),
        Site("scores", _ATTN + "hook_attn_scores", _ROWS, "edges", "dest"),
        Site("pattern", _ATTN + "hook_pattern", _ROWS, "edges", "dest"),
        Site("z", _ATTN + "hook_z", _HEADS, "heads", "dest"),
        Site("result", _ATTN + "hook_result", "batch pos head d_model", "heads", "dest"),
        Site("attn_out", _BLOCK + "hook_attn_out", _VECTOR, "stream", "dest"),
        Site("resid_mid", _BLOCK + "hook_resid_mid", _VECTOR, "stream", "dest"),
        Site("mlp_pre", _MLP + "hook_pre", "batch pos d_mlp", None, "dest"),
        Site("mlp_post", _MLP + "hook_post", "batch pos d_mlp", None, "dest"),
        Site("mlp_out", _BLOCK + "hook_mlp_out", _VECTOR, "stream", "dest"),
        Site("resid_post", _BLOCK + "hook_resid_post", _VECTOR, "stream", "dest"),
    )
}


PARTS = ("", "encoder", "decoder", "cross")
"""Parts of a model that have layers of their own: the only one, or those of a model that reads a context. "cross" is
the attention from the decoder to the context. A site is named after its part, as `encoder.pattern`."""

CROSS = {"q", "k", "v", "scores", "pattern", "z", "result", "attn_out", "resid_mid"}


def site(name: str) -> Site:
    """The row of that name, after its part or without one. Raises KeyError naming near sites."""
    part, bare = split(name)
    if bare not in SITES or part not in PARTS or (part == "cross" and bare not in CROSS):
        known = [in_part(one, row) for one in (PARTS if part else ("",)) for row in SITES]
        raise KeyError(f"no site {name!r}. {nearest(name, [row for row in known if not _missing_in_cross(row)])}")
    return SITES[bare]


def _missing_in_cross(name: str) -> bool:
    part, bare = split(name)
    return part == "cross" and bare not in CROSS


def split(name: str) -> tuple[str, str]:
    """The part and the bare name of a site: ("encoder", "pattern") of `encoder.pattern`."""
    part, _, bare = name.rpartition(".")
    return part, bare


def in_part(part: str, bare: str) -> str:
    """The name of a site in a part of a model."""
    return f"{part}.{bare}" if part else bare
