"""Which tools behave rightly where tools of this kind get things wrong? A table of behaviours and tools, measured."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import sys
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.devices import one_thread
from workbench.report import write_report
from workbench.tables import markdown_text, to_csv, to_markdown

__all__ = ["TOOLS", "judged", "main"]

TOOLS = {
    "ours": ("ours", "Ours"),
    "TransformerLens native bridge": ("native_bridge", "NativeBridge"),
    "TransformerLens gpt2 bridge": ("gpt2_bridge", "GPT2Bridge"),
    "PyTorch hooks": ("torch_hooks", "TorchHooks"),
    "nnsight": ("nnsight_tool", "NNsightTool"),
}
"""Column → module of `analyses.tools`, and class."""

VERSIONS = ("torch", "transformer-lens", "transformers", "nnsight", "attention-workbench")

_README = """\
# Behaviours that tools of this kind get wrong, and who gets them right

Each row is one behaviour, stated as a check that runs (`analyses/behaviours/`), and each column a tool, used as its
documentation has it used (`analyses/tools/`). A cell is `pass` where the whole check holds, and `fail` where it does
not; nothing is left out, and no cell is written by hand. What went wrong is in `conformance.csv`, a column a tool: the
first line of the error, or of what the check found.

`fail` does not mean that a tool is bad at what it is for. A tool that has no intervals, tables or pictures fails the
rows about them with "offers no ...": a person who uses it has to bring these, and may get them wrong. Rules about empty
rows and missing examples are left to the user by all tools but ours in this sense: the check asks whether the plain
thing to write is refused, or done rightly.

{table}

{counts}

## What each tool was given

Every model is a pre-norm decoder of 2 layers, 3 heads, width 12, 16 tokens and 8 positions, with random weights and
biases drawn by a seed.

- ours: a `Transformer` of this workbench. The tests run the same checks on its other kinds of model.
- TransformerLens native bridge: `TransformerBridge.boot_native`, LayerNorm; it has no dropout, so that N4 adds one
  after each MLP. Cuts and uniform rows are written at `hook_attn_scores`, `zero` at `hook_pattern`.
- TransformerLens gpt2 bridge: `build_bridge_from_module` around transformers' `GPT2LMHeadModel`, with
  `set_use_attn_result(True)`; edits at the same hooks.
- PyTorch hooks: the same `GPT2LMHeadModel` with eager attention. A cut adds −∞ to the layer's attention mask, a uniform
  row has queries of 0, since scores pass no module.
- nnsight: the same `GPT2LMHeadModel`, wrapped in `NNsight`; scores and weights are reached by `.source`, hooks of the
  user's are persistent edits.

In R4 the model stands on PyTorch's `meta` device, which every machine has; in R5 a GPU is pretended. N6 to N9 hand the
tools other models, made in `analyses/tools/families.py`.

TransformerLens' tools run through `run_with_hooks`, `get_caching_hooks`, `hooks` and `add_hook`.

## Where ours fails

{ours}

## Versions

{versions}
"""


def main(*, out: Path, seeds: int | None = None, quick: bool = False, progress: bool = True) -> Path:
    """Write `out/conformance/README.md` and `conformance.csv`, the same bytes each time, and return that folder.

    seeds: must stay None, since nothing here is trained. quick: the same table, which takes under a minute anyway.
    progress: a line per tool on standard error.

    Raises ModuleNotFoundError, saying how to install it, where one of the tools is missing, and ValueError for seeds.
    """
    if seeds is not None:
        raise ValueError(f"conformance over {seeds} seeds was asked; nothing is trained here, so leave --seeds out")
    table = judged({name: tool_of(name) for name in TOOLS}, progress=progress)
    return write_report(
        Path(out) / "conformance", {"README.md": _readme(table), "conformance.csv": to_csv(table.drop(columns="right"))}
    )


def tool_of(name: str) -> Callable[[], Any]:
    """What makes the tool of that column. Raises ModuleNotFoundError, saying how to install it, where it is missing."""
    module, kind = TOOLS[name]
    try:
        return getattr(importlib.import_module(f"analyses.tools.{module}"), kind)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("analyses", "workbench"):
            raise
        raise ModuleNotFoundError(
            f"{error.name} is not installed, and the table has a column for every tool; "
            "pip install 'attention-workbench[conformance]'",
            name=error.name,
        ) from error


def judged(tools: dict[str, Callable[[], Any]], *, progress: bool = False) -> pd.DataFrame:
    """A row a behaviour: id, situation, right, then pass or fail for each tool, then what was found in each failure."""
    from analyses.behaviours import BEHAVIOURS

    table = pd.DataFrame([{"id": one.id, "situation": one.situation, "right": one.right} for one in BEHAVIOURS])
    details = {}
    for name, make in tools.items():
        with one_thread():
            found = [_found(one.check, make) for one in BEHAVIOURS]
        table[name] = ["pass" if said is None else "fail" for said in found]
        details[f"{name}: what was found"] = [said or "" for said in found]
        if progress:
            print(f"conformance: {name} fails {sum(map(bool, found))} of {len(found)}", file=sys.stderr)
    return table.assign(**details)


def _found(check: Callable[[Any], None], make: Callable[[], Any]) -> str | None:
    """The first line of what is wrong; None where the check holds. What tools print and warn of is no part of it."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check(make())
    except Exception as error:
        line = next(iter(str(error).strip().splitlines()), "")
        kind = "" if isinstance(error, AssertionError) or type(error).__name__ == "Unoffered" else type(error).__name__
        return plain(": ".join(part for part in (kind, line) if part)) or type(error).__name__
    return None


def plain(text: str) -> str:
    """The text without what differs from run to run: addresses in memory, folders, times."""
    text = re.sub(r"0x[0-9a-fA-F]+", "0x…", text)
    text = re.sub(r"(?:/[\w.+-]+)+/([\w.+-]+)", r"\1", text)
    return re.sub(r"\b\d+(?:\.\d+)? ?(?:ms|s|seconds)\b", "…", text)


def _counted(table: pd.DataFrame, name: str) -> str:
    passed = int((table[name] == "pass").sum())
    lacking = int(table[f"{name}: what was found"].str.startswith("offers no").sum())
    wrong = len(table) - passed - lacking
    return f"- {name}: {passed} of {len(table)} pass; {lacking} fail for want of the feature, {wrong} otherwise"


def _readme(table: pd.DataFrame) -> str:
    shown = table[["id", "situation", "right", *TOOLS]].rename(columns={"right": "right behaviour"})
    counts = [_counted(table, name) for name in TOOLS]
    lost = table.loc[table["ours"] == "fail", ["id", "ours: what was found"]].to_numpy().tolist()
    return _README.format(
        table=to_markdown(shown),
        counts="\n".join(counts),
        ours="\n".join(f"- {name}: {markdown_text(said)}" for name, said in lost) or "Nowhere.",
        versions="\n".join(f"- {name} {metadata.version(name)}" for name in VERSIONS),
    )
