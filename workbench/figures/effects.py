"""Effects of single interventions as frames to draw: by head, by edge, by dose.

What a condition does is read from its interventions; labels are never parsed. A figure is of one kind of model and one
edit: `for (model, edit), own in table.groupby(["model", "edit"])` gives the rows of each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from workbench.interventions import Intervention
from workbench.locations import Edges, Heads
from workbench.nearest import nearest
from workbench.operations import Cut, Scale, Zero
from workbench.schema import check_columns, metrics
from workbench.study import Study

Place = Mapping[str, Any]


def effects_by_head(study: Study, results: pd.DataFrame, metric: str = "accuracy") -> pd.DataFrame:
    """What the same intervention does in one head after another, for `layer_head_map`.

    Conditions count that hold one intervention, of a single head, and differ from another such in its layer or head
    only. Columns: model, edit (the intervention without its layer and head), model_seed, layer, head, condition,
    effect: the trained model's mean of the metric, less its mean in the first condition without interventions.

    Raises ValueError where there are no such conditions, no condition without interventions, or an unknown metric.

    >>> from workbench import cut, grid
    >>> study = Study(conditions={"clean": [], **grid(cut, Edges, layer=0, head=[0, 1], dest="last")}, n=1, data_seed=0)
    >>> results = pd.DataFrame({"model": "m", "model_seed": 0, "condition": list(study.conditions), "example": 0,
    ...     "skipped": None, "accuracy": [1.0, 0.5, 0.0]}).astype(dict.fromkeys(["model", "condition", "skipped"],
    ...     "category"))
    >>> effects_by_head(study, results)[["edit", "layer", "head", "effect"]].values.tolist()
    [['cut each head last←every', 0, 0, -0.5], ['cut each head last←every', 0, 1, -1.0]]
    """
    return _effects(study, results, metric, _head, "are alike but for the head", ["layer", "head"])


def effects_by_edge(study: Study, results: pd.DataFrame, metric: str = "accuracy") -> pd.DataFrame:
    """What taking away one edge after another does, for `dest_source_map`.

    Conditions count that hold one `cut` or `zero` of Edges with a named source, and differ from another such in layer,
    head, dest or source only. Columns: model, edit, model_seed, layer, head, dest, source ("every" where the
    intervention names none), condition, effect: as in `effects_by_head`.

    Raises ValueError as `effects_by_head` does.

    >>> from workbench import cut, grid
    >>> study = Study(conditions={"clean": [], **grid(cut, Edges, layer=0, dest="last", source=["a", "b"])}, n=1,
    ...     data_seed=0)
    >>> results = pd.DataFrame({"model": "m", "model_seed": 0, "condition": list(study.conditions), "example": 0,
    ...     "skipped": None, "accuracy": [1.0, 0.5, 0.0]}).astype(dict.fromkeys(["model", "condition", "skipped"],
    ...     "category"))
    >>> effects_by_edge(study, results)[["head", "dest", "source", "effect"]].values.tolist()
    [['every', 'last', 'a', -0.5], ['every', 'last', 'b', -1.0]]
    """
    return _effects(study, results, metric, _edge, "cut one edge each", ["layer", "head", "dest", "source"])


def values_by_dose(study: Study, results: pd.DataFrame, metric: str = "accuracy") -> pd.DataFrame:
    """The metric where one edge's weight, or one vector, is scaled by one factor after another, for `dose_curve`.

    Conditions count that hold one `scale` and differ from another such in the factor only. Columns: model, edit (the
    intervention without its factor), model_seed, dose (the factor), condition, value: the trained model's mean.

    Raises ValueError where there are no such conditions, or for an unknown metric.

    >>> from workbench import grid, scale
    >>> study = Study(conditions=grid(scale, Edges, layer=0, dest="last", source="a", by=[0.5, 2.0]), n=1, data_seed=0)
    >>> results = pd.DataFrame({"model": "m", "model_seed": 0, "condition": list(study.conditions), "example": 0,
    ...     "skipped": None, "accuracy": [0.0, 1.0]}).astype(dict.fromkeys(["model", "condition", "skipped"],
    ...     "category"))
    >>> values_by_dose(study, results)[["edit", "dose", "value"]].values.tolist()
    [['scale L0 last←a', 0.5, 0.0], ['scale L0 last←a', 2.0, 1.0]]
    """
    placed = _placed(study, _dose)
    if not placed:
        raise ValueError(_none("scale one place by several factors", study))
    return _joined(placed, seed_means(results, metric), ["dose"])


def there(study: Study) -> set[str]:
    """Which of "head", "edge" and "dose" the study has several conditions of, as the functions above ask for them."""
    known = {"head": _head, "edge": _edge, "dose": _dose}
    able = {name for name, place in known.items() if _placed(study, place)}
    return able if untouched(study) else able & {"dose"}


def seed_means(results: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Each trained model's mean over the examples that ran: columns model, model_seed, condition, value."""
    check_columns(results)
    if metric not in metrics(results):
        raise ValueError(f"metric {metric!r} is not in the results. {nearest(metric, metrics(results))}")
    ran = results[results["skipped"].isna()]
    means = ran.groupby(["model", "model_seed", "condition"], observed=True)[metric].mean().dropna()
    return means.rename("value").reset_index().astype({"model": str, "condition": str})


def untouched(study: Study) -> list[str]:
    """The conditions without interventions."""
    return [label for label, edits in study.conditions.items() if not edits]


def _effects(
    study: Study, results: pd.DataFrame, metric: str, place: Callable, what: str, columns: Sequence[str]
) -> pd.DataFrame:
    placed = _placed(study, place)
    if not placed:
        raise ValueError(_none(what, study))
    if not untouched(study):
        raise ValueError("an effect is a change, and the study has no condition without interventions; add 'clean': ()")
    values = seed_means(results, metric)
    clean = values[values["condition"].isin(untouched(study))].groupby(["model", "model_seed"])["value"].first()
    table = _joined(placed, values, columns).join(clean.rename("clean"), on=["model", "model_seed"])
    table["effect"] = table["value"] - table["clean"]
    return table.drop(columns=["value", "clean"]).dropna(subset="effect").reset_index(drop=True)


def _placed(study: Study, place: Callable[[Intervention], tuple[str, Place] | None]) -> list[dict[str, Any]]:
    """A row for each condition of one intervention that has a place among others like it."""
    families: dict[str, list[dict[str, Any]]] = {}
    for label, edits in study.conditions.items():
        found = place(edits[0]) if len(edits) == 1 else None
        if found is not None:
            rest = _rest(edits[0], {*found[1], *(["by"] if "dose" in found[1] else [])})
            families.setdefault(rest, []).append({"condition": label, "edit": found[0], **found[1]})
    return [row for rows in families.values() if _several(rows) for row in rows]


def _several(rows: Sequence[Mapping[str, Any]]) -> bool:
    places = [tuple(value for name, value in row.items() if name not in ("condition", "edit")) for row in rows]
    return len(set(places)) > 1


def _rest(one: Intervention, free: set[str]) -> str:
    """Everything of an intervention but the fields in which its family differs."""
    said = one.model_dump(mode="json")
    kept = {part: {name: value for name, value in said[part].items() if name not in free} for part in said}
    return json.dumps(kept, sort_keys=True)


def _head(one: Intervention) -> tuple[str, Place] | None:
    if not isinstance(one.where, Edges | Heads) or one.where.head is None:
        return None
    name = f"L{one.where.layer}H{one.where.head}"
    return str(one).replace(name, "each head", 1), {"layer": one.where.layer, "head": one.where.head}


def _edge(one: Intervention) -> tuple[str, Place] | None:
    where = one.where
    if not isinstance(where, Edges) or not isinstance(one.what, Cut | Zero) or where.source is None:
        return None
    head = "every" if where.head is None else where.head
    part = f" of {where.in_model} attention" if where.in_model else ""
    does = "cut one edge" if isinstance(one.what, Cut) else "zero one edge after softmax"
    left = getattr(one.what, "empty", "raise")
    empty = "" if left == "raise" else f" (empty rows: {left})"
    return f"{does}{part}{empty}", {
        "layer": where.layer,
        "head": head,
        "dest": where.dest or "every",
        "source": where.source,
    }


def _dose(one: Intervention) -> tuple[str, Place] | None:
    return (f"scale {one.where}", {"dose": float(one.what.by)}) if isinstance(one.what, Scale) else None


def _joined(placed: Sequence[Mapping[str, Any]], values: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """The rows of the placed conditions, in their order, one a trained model; a place named twice counts once."""
    unique = pd.DataFrame(placed).drop_duplicates(["edit", *columns])
    table = unique.merge(values, on="condition", how="inner")
    table = table.sort_values(["model", "model_seed"], kind="stable")
    return table[["model", "edit", "model_seed", *columns, "condition", "value"]].reset_index(drop=True)


def _none(what: str, study: Study) -> str:
    there = "; ".join(
        f"{label}: {', '.join(map(str, edits)) or 'nothing'}" for label, edits in study.conditions.items()
    )
    return f"no two conditions {what}; there are: {there}"
