"""What a sweep measured: its frame, the effect of each cell, and their heat map."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd
from einops import rearrange

from workbench.nearest import nearest
from workbench.results import bounds_of, numbers_of
from workbench.schema import metrics
from workbench.statistics import difference_interval
from workbench.sweep_plan import COORDINATES, listed

if TYPE_CHECKING:
    from workbench.figures import Figure

__all__ = ["Swept"]

CLEAN = "clean"
DEAD = re.compile(r"cannot reach what is read in (\d+) of \1 examples")
UNCHANGED = "the logits are those without interventions, bit for bit, in every example"


def ran_of(n: int, skipped: Mapping[int, str]) -> str:
    """How many of `n` examples ran, and what most of the others lacked. skipped: example → reason."""
    reason, some = Counter(skipped.values()).most_common(1)[0]
    reason = f"{some} of them, {reason}" if some < len(skipped) else reason
    return f"{n - len(skipped)} of {n} examples ran; {len(skipped)} lacked what some cell acts on ({reason})"


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


@dataclass(frozen=True, repr=False, eq=False)
class Swept:
    """What a sweep measured.

    frame: the results frame, one row per model × condition × example, models and conditions in order; "clean" is in it.
        Its `attrs` say what was measured, as those of `run_study`'s do.
    places: condition → where its cell lies (layer, head, dest, source, part, pos: what the sweep varied).
    left_out: the places whose edit would leave a row without a source, and why.
    notes: model, model_seed, condition, note; the condition is missing where a note is on the whole sweep, which come
        first: how many examples ran, which places were left out.
    over: what was swept. words: side → position → what a figure calls it. part: "encoder", "decoder" or "cross" of a
        model that has several.
    """

    frame: pd.DataFrame
    places: pd.DataFrame
    left_out: pd.DataFrame
    notes: pd.DataFrame
    over: str
    words: Mapping[str, Mapping[int, str]]
    part: str = ""

    def __repr__(self) -> str:
        clean = self.frame[self.frame["condition"] == CLEAN]
        n, models = clean["example"].nunique(), clean.groupby(["model", "model_seed"], observed=True)["skipped"]
        ran = sorted({int(own.isna().sum()) for _, own in models})
        examples = [*(["{} to {} of" if ran[1:] else "{} of"] if ran != [n] else []), _count(n, "example")]
        dead = f", {self._dead()} that cannot reach what is read" if self._dead() else ""
        return (
            f"Swept({_count(len(self.places), 'cell')} over {self.over}, {len(self.left_out)} left out{dead}; "
            f"{_count(len(models), 'model')}, {' '.join(examples).format(ran[0], ran[-1])}; "
            f"{', '.join(metrics(self.frame))})"
        )

    def _dead(self) -> int:
        """How many cells cannot reach what is read, in any model and example."""
        clean = self.frame[self.frame["condition"] == CLEAN]
        models = len(clean[["model", "model_seed"]].drop_duplicates())
        there = self.notes[self.notes["note"].str.match(DEAD).astype(bool)]
        return int((there.groupby("condition")["model_seed"].size() == models).sum())

    def effects(self, metric: str | None = None, *, against: str = CLEAN, level: float = 0.95) -> pd.DataFrame:
        """One row a kind of model and cell: its places and what `contrast(frame, cell, against, metric)` gives.

        unchanged: whether the logits of every model are the clean ones, bit for bit. note: what must be known of the
        cell, as that it cannot reach what is read, so that its effect is 0 by construction; "" where there is nothing.

        Raises ValueError for an unknown metric or condition.
        """
        metric, kinds = self._asked(metric, against)
        bounds, notes = bounds_of(self.frame, metric), self._noted()
        n, rows = self.frame["example"].nunique(), []
        for kind, several in kinds.items():
            for label in self.places["condition"]:
                pairs = [(own[label], own[against]) for own in several if label in own and against in own]
                if pairs:
                    interval = difference_interval(pairs, level=level, bounds=bounds)
                    row = numbers_of(n * len(pairs), [a - b for a, b in pairs], interval, level)
                    same, note = notes.get((kind, label), (0, ""))
                    names = {"model": kind, "condition": label, "metric": metric, "against": against}
                    rows.append(names | row | {"unchanged": same == len(pairs), "note": note})
        table = pd.DataFrame(rows).merge(self.places, on="condition").astype({"n_examples": "Int64"})
        first = ["model", "condition", *COORDINATES[self.over], "metric", "against"]
        return table[[*first, *(name for name in table if name not in first)]]

    def means(self, metric: str | None = None, *, against: str = CLEAN) -> pd.DataFrame:
        """One row a trained model and cell: model, model_seed, condition, its places, the mean of the metric over
        examples (`value`), and how much that is above the mean in the condition `against` (`effect`)."""
        metric, _ = self._asked(metric, against)
        ran = self.frame[self.frame["skipped"].isna()]
        means = ran.groupby(["model", "model_seed", "condition"], observed=True)[metric].mean()
        table = means.rename("value").reset_index().astype({"model": str, "condition": str})
        base = table[table["condition"] == against].set_index(["model", "model_seed"])["value"].rename("base")
        table = table.merge(self.places, on="condition").join(base, on=["model", "model_seed"])
        table["effect"] = table["value"] - table["base"]
        return table[["model", "model_seed", "condition", *COORDINATES[self.over], "value", "effect"]]

    def heat_map(
        self,
        metric: str | None = None,
        *,
        model: str | None = None,
        against: str = CLEAN,
        title: str | None = None,
        **chosen: Any,
    ) -> Figure:
        """The effects as squares: dest × source in a panel for each layer and head; layer × head in one for each part
        and position; layers × sites, or × positions in a panel for each site, of the stream.

        Every trained model is a dot. Dotted squares are those whose logits stay the clean ones bit for bit, as where
        the cell cannot reach what is read. model: which kind, where there are several. chosen: which cells to draw, as
        layer=1 or head=[0, 2], by the columns of `places`. The colour bar's unit is the metric's.

        Raises ValueError for several kinds of model of which none is named, no such cells, or more than 40 panels.
        """
        from workbench.figures.sweeps import sweep_map

        metric, kinds = self._asked(metric, against)
        kind = next(iter(kinds)) if model is None and len(kinds) == 1 else model
        if kind not in kinds:
            there = f"there are: {', '.join(kinds)}; say model={next(iter(kinds))!r}"
            raise ValueError(f"a figure is of one kind of model, not model={model!r}; {there}")
        table = self.means(metric, against=against)
        table, left_out = self._only(table[table["model"] == kind], chosen), self._only(self.left_out, chosen)
        if table.empty:
            raise ValueError(f"no cell of {kind!r} has {chosen}; the cells are in `places`")
        same = self.notes[(self.notes["model"] == kind) & (self.notes["note"] == UNCHANGED)]
        cells = pd.MultiIndex.from_frame(table[["model_seed", "condition"]])
        table = table.assign(unchanged=cells.isin(list(zip(same["model_seed"], same["condition"], strict=True))))
        label = f"{metric}, change from {against}"
        return sweep_map(
            table, over=self.over, left_out=left_out, words=self.words, label=label, title=title, part=self.part,
            remark=" ".join(self._ran(kind)),
        )  # fmt: skip

    def _ran(self, kind: str) -> list[str]:
        """How many examples of a kind of model ran where some did not, and what those lacked."""
        clean = self.frame[(self.frame["condition"] == CLEAN) & (self.frame["model"] == kind)]
        several = [own["skipped"].astype(object) for _, own in clean.groupby("model_seed")]
        said = [ran_of(len(own), dict(own.dropna())) for own in several if own.notna().any()]
        return [f"{one}." for one in dict.fromkeys(said)]

    def _only(self, table: pd.DataFrame, chosen: Mapping[str, Any]) -> pd.DataFrame:
        for name, value in chosen.items():
            if name not in COORDINATES[self.over]:
                raise TypeError(f"{name}= chooses no cells over {self.over}: {', '.join(COORDINATES[self.over])} do")
            table = table[table[name].isin(listed(value))]
        return table

    def _asked(self, metric: str | None, against: str) -> tuple[str, dict[str, list]]:
        """The metric, and kind of model → of each trained model: condition → values of the examples that ran."""
        known = metrics(self.frame)
        metric = known[0] if metric is None else metric
        if metric not in known:
            raise ValueError(f"metric {metric!r} was not measured. {nearest(metric, known)}")
        kinds: dict[str, list] = {}
        for (kind, _), own in self.frame.groupby(["model", "model_seed"], observed=True, sort=False):
            n = own["example"].nunique()
            ran = own["skipped"].isna().to_numpy()[:n]
            values = rearrange(own[metric].to_numpy(float), "(c n) -> c n", n=n)[:, ran]
            conditions = own["condition"].iloc[::n].astype(str)
            kinds.setdefault(str(kind), []).append(dict(zip(conditions, values, strict=True)))
        if not any(against in own for several in kinds.values() for own in several):
            there = ", ".join(self.frame["condition"].cat.categories[:2])
            raise ValueError(f"no condition {against!r} to compare with; there are: {there}, and the cells")
        return metric, kinds

    def _noted(self) -> dict[tuple[str, str], tuple[int, str]]:
        """(kind of model, condition) → in how many models the logits stayed as they were, and the notes in words."""
        n = self.frame.groupby("model", observed=True)["model_seed"].nunique()
        out = {}
        for (kind, label), own in self.notes.dropna(subset="condition").groupby(["model", "condition"], sort=False):
            said = []
            for note, several in own.groupby("note", sort=False)["model_seed"]:
                some = len(several) < n[kind]
                said.append(f"{note} (model seeds {', '.join(map(str, several))})" if some else note)
            out[kind, label] = (int((own["note"] == UNCHANGED).sum()), "; ".join(said))
        return out
