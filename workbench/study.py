"""Studies and claims as frozen values, and the verdicts that results give on claims."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from workbench.declared import Models, TaskOf
from workbench.fields import Named
from workbench.interventions import Intervention
from workbench.locations import Edges
from workbench.operations import Custom
from workbench.roles import Derived

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Claim", "Donor", "Study", "Verdict", "judge", "together"]

Outcome = Literal["supported", "not supported", "undecided"]


class Donor(Named):
    """A donor batch of a study: drawn anew with `data_seed` (None: the study's own examples), and then replaced by its
    matched counterfactuals where `corrupt_seed` is given."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    data_seed: int | None = None
    corrupt_seed: int | None = None


class Study(Named):
    """What is measured on a task's examples in each of several trained models.

    conditions: label → interventions; all see the same examples. task, models: what it runs on, where the study says it
    itself (`run_declared`, `workbench study run`). only: label of models → conditions, weights and derived
    relations that are for them and not for all. weights: name → edges whose mean recorded weight is
    kept per example, in the condition without interventions. derived: relations computed anew from each model's clean
    run. n, data_seed: the examples. on_missing: "skip" drops an example that some condition cannot act on from EVERY
    condition, and counts it.

    Raises TypeError for unknown keys, ValidationError (a ValueError) for a `custom` intervention (a function cannot be
    declared), and weights without a condition in which to record them.

    >>> from workbench import Edges, cut
    >>> Study(conditions={"clean": [], "cut": [cut(Edges(layer=1, dest="last", source="answer"))]}, n=10, data_seed=0).n
    10
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    conditions: Mapping[str, tuple[Intervention, ...]] = Field(min_length=1)
    task: TaskOf | None = None
    models: Mapping[str, Models] = {}
    only: Mapping[str, tuple[str, ...]] = {}
    weights: Mapping[str, Edges] = {}
    derived: Mapping[str, Derived] = {}
    donors: Mapping[str, Donor] = {}
    metrics: tuple[str, ...] = ("accuracy",)
    n: int = Field(ge=1, strict=True)
    data_seed: int = Field(strict=True)
    on_missing: Literal["raise", "skip"] = "raise"

    @model_validator(mode="before")
    @classmethod
    def _listed(cls, values: Any) -> Any:
        conditions = values.get("conditions") if isinstance(values, dict) else None
        for label, several in conditions.items() if isinstance(conditions, Mapping) else ():
            if isinstance(several, Intervention):
                raise ValueError(
                    f"condition {label!r}: interventions come as a list, as [{several}], also when there is one"
                )
        return values

    @model_validator(mode="after")
    def _declarable(self) -> Study:
        for label, interventions in self.conditions.items():
            if any(isinstance(one.what, Custom) for one in interventions):
                raise ValueError(f"condition {label!r} holds a custom function, which a study cannot declare; use run")
        if self.weights and all(self.conditions.values()):
            raise ValueError("weights are recorded in a condition without interventions; add one, such as 'clean': ()")
        if taken := {*self.weights, *self.metrics} & {"model", "model_seed", "condition", "example", "skipped"}:
            raise ValueError(f"{sorted(taken)} cannot name a weight or a metric: results have columns of that name")
        known = [*self.conditions, *self.weights, *self.derived]
        for label, names in self.only.items():
            if unknown := sorted(set(names) - set(known)):
                raise ValueError(f"only.{label} names {unknown[0]!r}; there are: {', '.join(known)}")
            if self.models and label not in self.models:
                raise ValueError(f"only names the models {label!r}; there are: {', '.join(self.models)}")
        if clash := set(self.weights) & set(self.metrics):
            raise ValueError(f"{sorted(clash)} name a weight and a metric; a column must mean one thing")
        return self


def for_model(study: Study, label: str) -> Study:
    """The study as it is for the models of one label: without what is only for others."""
    others = {name for names in study.only.values() for name in names} - set(study.only.get(label, ()))
    kept = {
        what: {name: one for name, one in getattr(study, what).items() if name not in others}
        for what in ("conditions", "weights", "derived")
    }
    return study.model_copy(update={**kept, "only": {}})


class Claim(Named):
    """A sentence, the quantity q that tests it, and where q has to lie.

    q is the metric in condition `a` minus in condition `b`, paired; with b=None it is the metric's mean in `a`.

    | direction | with b: q is a contrast | without b: q is a mean |
    |---|---|---|
    | greater | q > margin | q > margin |
    | less | q < −margin | q < margin |
    | within | −margin < q < margin | reference − margin < q < reference + margin |

    Raises pydantic's ValidationError (a ValueError) for unknown keys, a negative margin of a contrast, a margin of
    `within` that is not positive, and a `reference` anywhere but in `within` without b, which needs one.

    >>> Claim(id="cut", statement="The digit matters.", metric="accuracy", a="clean", b="cut-answer",
    ...     direction="greater", margin=0.5).region
    (0.5, inf)
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    id: str = Field(min_length=1)
    statement: str = Field(min_length=1)
    metric: str
    a: str
    b: str | None = None
    model: str | None = None
    direction: Literal["greater", "less", "within"]
    margin: float
    reference: float | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Claim:
        if self.a == self.b:
            raise ValueError(f"claim {self.id!r} contrasts {self.a!r} with itself; name two conditions, or leave b out")
        needs_reference = self.direction == "within" and self.b is None
        if needs_reference != (self.reference is not None):
            given = "missing" if needs_reference else f"{self.reference}"
            raise ValueError(f"claim {self.id!r}: reference is {given}; give it for `within` without b, and only there")
        if self.direction == "within" and self.margin <= 0:
            raise ValueError(f"claim {self.id!r}: nothing is within a margin of {self.margin}; make it positive")
        if self.b is not None and self.margin < 0:
            raise ValueError(f"claim {self.id!r}: the margin of a contrast is {self.margin}; make it 0 or more")
        return self

    @property
    def region(self) -> tuple[float, float]:
        """The ends of the open interval in which q has to lie."""
        if self.direction == "greater":
            return self.margin, math.inf
        if self.direction == "less":
            return -math.inf, (self.margin if self.b is None else -self.margin)
        centre = self.reference or 0.0
        return centre - self.margin, centre + self.margin


@dataclass(frozen=True)
class Verdict:
    """What the results say of a claim. `n_examples` is per trained model, None where trained models differ."""

    claim: Claim
    estimate: float
    low: float
    high: float
    interval: str
    level: float
    n_models: int
    n_examples: int | None
    verdict: Outcome


def judge(claim: Claim, frame: pd.DataFrame, level: float = 0.95) -> Verdict:
    """Supported: the whole interval lies inside the claim's region. Not supported: wholly outside. Else undecided.

    The interval is `results.contrast`'s, over trained models; without an interval a claim is undecided. Raises
    ValueError, as `results.contrast` does, for a condition, metric or model that `frame` does not have.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"model": "m", "model_seed": 0, "condition": "clean", "example": range(100),
    ...     "skipped": None, "accuracy": 1.0}).astype(dict.fromkeys(["model", "condition", "skipped"], "category"))
    >>> claim = Claim(id="base", statement="It learns.", metric="accuracy", a="clean", direction="greater", margin=0.9)
    >>> judge(claim, frame).verdict
    'supported'
    """
    from workbench.results import contrast

    row = contrast(frame, claim.a, claim.b, claim.metric, claim.model, level).iloc[0]
    low, high, alike = float(row["low"]), float(row["high"]), row.dropna()
    return Verdict(
        claim=claim,
        estimate=float(row["estimate"]),
        low=low,
        high=high,
        interval=row["interval"],
        level=level,
        n_models=int(row["n_models"]),
        n_examples=int(alike["n_examples"]) if "n_examples" in alike else None,
        verdict=_outcome(low, high, claim.region),
    )


def together(verdicts: Iterable[Verdict]) -> Outcome:
    """One outcome for a claim made in several parts: all supported; else not supported if any is; else undecided.

    Raises ValueError for no verdicts.

    >>> together([])
    Traceback (most recent call last):
    ValueError: no verdicts to put together; judge at least one claim
    """
    outcomes = {verdict.verdict for verdict in verdicts}
    if not outcomes:
        raise ValueError("no verdicts to put together; judge at least one claim")
    if outcomes == {"supported"}:
        return "supported"
    return "not supported" if "not supported" in outcomes else "undecided"


def _outcome(low: float, high: float, region: tuple[float, float]) -> Outcome:
    """The region is open: an interval that touches its end from outside is wholly outside. NaN ends decide nothing."""
    if low > region[0] and high < region[1]:
        return "supported"
    return "not supported" if high <= region[0] or low >= region[1] else "undecided"
