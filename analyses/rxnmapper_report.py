"""The rxnmapper report: claims, tables and figures from what was measured."""

from __future__ import annotations

import importlib.metadata
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from analyses.rxnmapper_batch import COPIES
from analyses.rxnmapper_cuts import CHUNK, RANDOM, TOP, TOP_IN_COPY
from analyses.rxnmapper_model import LAYER_AND_HEAD, REQUIREMENT, WHEEL_SHA256
from workbench import Claim, contrast, judge, paired_tests, together
from workbench.checkpoints import provenance
from workbench.figures import effect_against_weight, layer_head_map, to_svg
from workbench.report import write_report
from workbench.tables import percent, to_csv, to_latex, to_markdown

if TYPE_CHECKING:
    from analyses.rxnmapper import Evidence

__all__ = ["SENTENCES", "Tables", "claims_of", "write"]

LAYER, HEAD = LAYER_AND_HEAD
MAPPER, COLUMN = f"L{LAYER}H{HEAD}", f"H{HEAD}"

SENTENCES = {
    "pattern": f"{MAPPER} maps product atoms to reactant atoms of the same element in more than 95%",
    "matters": f"cutting {MAPPER}'s product←reactant edges raises the loss on masked atoms",
    "largest": f"no other head's cut raises it more than {MAPPER}'s",
    "enough": f"cutting {MAPPER} alone raises it by at least half of what cutting all heads does",
    "column": f"cutting head {HEAD} in all layers raises it by at least half of what cutting all heads does",
    "top edge": f"cutting the one edge a row that the mapping reads, in {MAPPER}, does more than a random other",
}
"""The claims, written down with their margins before any cut of this batch was measured."""

NONE, LARGE = 0.01, 0.1
"""As shares of the clean loss: the largest effect that the figures call none, the smallest that they call large. Set
before the cuts were measured."""

PROTOTYPE = {"atoms": 11, "clean": 0.0048, "cut": 0.0167, "all": 1.34}
"""What a prototype of this analysis found on one reaction."""


def claims_of(frame: pd.DataFrame) -> dict[str, tuple[tuple[Claim, ...], float]]:
    """id → the claim's parts, and the level of their intervals. `largest` has a part for each other head, each at the
    level that makes all of them hold together at 95% (Bonferroni)."""
    labels = [str(label) for label in frame["condition"].cat.categories]
    others = [label for label in labels if label.startswith("L") and "H" in label and label != MAPPER]

    def above(id: str, a: str, b: str | None, margin: float = 0.0, metric: str = "loss") -> Claim:
        said = SENTENCES[id]
        return Claim(id=id, statement=said, metric=metric, a=a, b=b, direction="greater", margin=margin)

    return {
        "pattern": ((above("pattern", "clean", None, 0.95, "agreement"),), 0.95),
        "matters": ((above("matters", MAPPER, "clean"),), 0.95),
        "largest": (tuple(above("largest", MAPPER, other) for other in others), 1 - 0.05 / len(others)),
        "enough": ((above("enough", MAPPER, "halfway"),), 0.95),
        "column": ((above("column", COLUMN, "halfway"),), 0.95),
        "top edge": ((above("top edge", TOP, RANDOM),), 0.95),
    }


def claims_table(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per claim: the part that speaks most against it, and the verdict of all parts together."""
    rows = []
    for id, (several, level) in claims_of(frame).items():
        verdicts = [judge(claim, frame, level) for claim in several]
        worst = min(verdicts, key=lambda verdict: verdict.estimate)
        claim = worst.claim
        rows.append(
            {
                "id": id,
                "statement": SENTENCES[id],
                "quantity": f"{claim.metric}: {claim.a}" + (f" − {claim.b}" if claim.b else ""),
                "must exceed": claim.margin,
                "estimate": worst.estimate,
                "low": worst.low,
                "high": worst.high,
                "level": level,
                "parts": len(several),
                "verdict": together(verdicts),
            }
        )
    return pd.DataFrame(rows)


def cuts_table(evidence: Evidence) -> pd.DataFrame:
    """A row per condition but clean: `effect`, the mean over reactions of the loss less the clean loss, in nats, with
    Student's t interval over reactions; its `median`; `worse`, the share of reactions whose loss rose; accuracy and its
    change; Wilcoxon's p, by Holm over the `family` of conditions."""
    frame, rows = evidence.frame, []
    loss = frame.pivot(index="example", columns="condition", values="loss")
    for family in dict.fromkeys(one.family for one in evidence.conditions if one.family != "clean"):
        labels = [one.label for one in evidence.conditions if one.family == family]
        tests = paired_tests(frame, [(label, "clean") for label in labels], "loss").set_index("a")
        for label in labels:
            effect = contrast(frame, label, "clean", "loss").iloc[0]
            right = contrast(frame, label, "clean", "accuracy").iloc[0]
            change = loss[label] - loss["clean"]
            rows.append(
                {"condition": label, "family": family, "loss": loss[label].mean()}
                | {name: effect[name] for name in ("estimate", "low", "high")}
                | {"median": change.median(), "worse": (change > 0).mean(), "accuracy_change": right["estimate"]}
                | {"accuracy_low": right["low"], "accuracy_high": right["high"]}
                | {name: tests.loc[label, name] for name in ("p", "p_holm")}
                | {"tests": tests.loc[label, "family"], "reactions": effect["n_examples"]}
            )
    return pd.DataFrame(rows).rename(columns={"estimate": "effect"})


def heads_table(evidence: Evidence, cuts: pd.DataFrame) -> pd.DataFrame:
    """A row per head: what its weights show, and what cutting it does."""
    own = cuts[cuts["family"] == "head"].reset_index(drop=True)
    assert [f"L{a}H{b}" for a, b in evidence.heads[["layer", "head"]].to_numpy(int)] == list(own["condition"])
    return pd.concat([evidence.heads, own.drop(columns=["family"])], axis=1)


def single_table(evidence: Evidence) -> pd.DataFrame:
    """A row per reaction with as many product atoms as the prototype's: one reaction read by itself."""
    loss = evidence.frame.pivot(index="example", columns="condition", values="loss")
    heads = loss[[one.label for one in evidence.conditions if one.family == "head"]]
    atoms = evidence.batch.role("product").sum(1).tolist()
    right = evidence.frame.loc[evidence.frame["condition"] == "clean"].set_index("example")["agreement"]
    rows = []
    for example, name in enumerate(evidence.reactions):
        if atoms[example] == PROTOTYPE["atoms"]:
            own = loss.loc[example]
            rows.append(
                {
                    "reaction": name,
                    "mapped right": f"{round(right[example] * atoms[example])} of {atoms[example]}",
                    "clean": own["clean"],
                    f"{MAPPER} cut": own[MAPPER],
                    "rank of the cut": int((heads.loc[example] > own[MAPPER]).sum()) + 1,
                    "largest head": heads.loc[example].idxmax(),
                    "its loss": heads.loc[example].max(),
                    "all cut": own["all"],
                }
            )
    return pd.DataFrame(rows)


@dataclass(frozen=True)
class Tables:
    """The report's tables."""

    claims: pd.DataFrame
    cuts: pd.DataFrame
    heads: pd.DataFrame
    single: pd.DataFrame

    @classmethod
    def of(cls, evidence: Evidence) -> Tables:
        cuts = cuts_table(evidence)
        return cls(claims_table(evidence.frame), cuts, heads_table(evidence, cuts), single_table(evidence))


def shown(evidence: Evidence, tables: Tables) -> dict[str, pd.DataFrame]:
    """The tables that the README prints, by file name, with numbers as a person reads them."""
    top = tables.heads.sort_values("effect", ascending=False).head(10)
    parts = {name: tables.cuts[tables.cuts["family"] == name] for name in ("layer", "column", "all", "edge")}
    weights = {"agreement": top["agreement"].map(percent), "weight": top["weight"].map("{:.3f}".format)}
    return {
        "claims": _verdicts(tables.claims),
        "top-heads": _effects(top).assign(**weights),
        "layers": _effects(parts["layer"]),
        "columns": _effects(parts["column"]),
        "all-and-edges": _effects(pd.concat([parts["all"], parts["edge"]])),
        "prototype": evidence.prototype.round(4),
        "single-reactions": tables.single.round(4),
    }


def _verdicts(rows: pd.DataFrame) -> pd.DataFrame:
    interval = [f"{low:.4f} to {high:.4f}" for low, high in zip(rows["low"], rows["high"], strict=True)]
    out = rows[["id", "statement", "quantity"]].assign(**{"must exceed": rows["must exceed"].map("{:g}".format)})
    return out.assign(here=rows["estimate"].map("{:.4f}".format), interval=interval, verdict=rows["verdict"])


def _effects(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "cut": rows["condition"],
            "loss": rows["loss"].map("{:.4f}".format),
            "rise": rows["effect"].map("{:+.4f}".format),
            "95% interval": [f"{a:+.4f} to {b:+.4f}" for a, b in zip(rows["low"], rows["high"], strict=True)],
            "median rise": rows["median"].map("{:+.5f}".format),
            "reactions worse": rows["worse"].map(percent),
            "accuracy": [f"{100 * x:+.2f} points" for x in rows["accuracy_change"]],
            "p (Holm)": rows["p_holm"].map("{:.2g}".format),
        }
    )


def figures(evidence: Evidence, heads: pd.DataFrame) -> dict[str, bytes]:
    """Every figure as SVG, by file name."""
    rise, marked = "rise of the loss on masked atoms (nats)", [LAYER_AND_HEAD]
    largest = heads.nlargest(3, "effect")[["layer", "head"]].to_numpy(int).tolist()
    element = "product atoms mapped to the same element, share"
    against = partial(
        effect_against_weight,
        heads,
        effects=(NONE * _clean(evidence), LARGE * _clean(evidence)),
        effect_label=rise,
        marked=sorted({LAYER_AND_HEAD, *map(tuple, largest)}),
    )
    drawn = {
        "agreement": layer_head_map(
            heads, value="agreement", label=element, title="What each head's weights show", marked=marked
        ),
        "effect": layer_head_map(
            heads, value="effect", label=rise, title="What cutting each head does", marked=marked
        ),
        "effect-against-weight": against(
            weights=(0.1, 0.5), weight_label="attention of a product atom on all reactant atoms, share",
            title="Effect of a head's cut against the weight that is cut",
        ),
        "effect-against-agreement": against(
            weights=(evidence.baselines["random"], 0.95), weight="agreement", weight_label=element,
            title="Effect of a head's cut against how well it maps",
        ),
    }  # fmt: skip
    return {f"{name}.svg": to_svg(figure) for name, figure in drawn.items()}


def _clean(evidence: Evidence) -> float:
    return float(evidence.frame.loc[evidence.frame["condition"] == "clean", "loss"].mean())


def write(folder: Path, evidence: Evidence) -> Path:
    """Writes the report, and prints its verdicts."""
    tables = Tables.of(evidence)
    printed = shown(evidence, tables)
    files: dict[str, str | bytes] = {
        "README.md": readme(evidence, tables, printed),
        **{f"{name}.csv": to_csv(one) for name, one in vars(tables).items()},
        **{f"{name}.md": to_markdown(one) for name, one in printed.items() if len(one)},
        **{f"{name}.tex": to_latex(one) for name, one in printed.items() if len(one)},
        **figures(evidence, tables.heads),
        "results.csv": to_csv(_results(evidence)),
        "provenance.json": json.dumps(_provenance(evidence), indent=1, sort_keys=True, ensure_ascii=False),
    }
    write_report(folder, files)
    for row in tables.claims.to_dict("records"):
        print(f"{row['id']:<10}{row['estimate']:>9.4f}  [{row['low']:.4f}, {row['high']:.4f}]  {row['verdict']}")
    return folder


def _results(evidence: Evidence) -> pd.DataFrame:
    """Every reaction in every condition, a row a reaction: its loss."""
    names = list(evidence.reactions)
    loss = evidence.frame.pivot(index="example", columns="condition", values="loss").drop(columns="halfway")
    return loss.assign(reaction=[names[example] for example in loss.index])[["reaction", *loss.columns]]


def readme(evidence: Evidence, tables: Tables, printed: dict[str, pd.DataFrame]) -> str:
    """The report a person reads."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True, autoescape=False,
    )  # fmt: skip
    return environment.get_template("rxnmapper.md.j2").render(
        **_counts(evidence),
        **_effects_said(evidence, tables),
        verdicts=tables.claims.set_index("id").to_dict("index"),
        tables={name: to_markdown(one) if len(one) else "" for name, one in printed.items()},
        single=[{**row, "change": row[f"{MAPPER} cut"] - row["clean"]} for row in tables.single.to_dict("records")],
        prototype=PROTOTYPE,
        mapper=MAPPER,
        column=COLUMN,
        in_copy=TOP_IN_COPY,
        percent=percent,
        copies=COPIES,
        chunk=CHUNK,
    )


def _counts(evidence: Evidence) -> dict[str, Any]:
    clean = evidence.frame[evidence.frame["condition"] == "clean"]
    return {
        "quick": evidence.quick,
        "n": len(evidence.reactions),
        "n_copies": len(evidence.made.batch),
        "atoms": int(evidence.batch.role("product").sum()),
        "clean": float(clean["loss"].mean()),
        "median": float(clean["loss"].median()),
        "accuracy": percent(float(clean["accuracy"].mean())),
        "tenth": percent(float(clean["loss"].nlargest(max(len(clean) // 10, 1)).sum() / clean["loss"].sum())),
        "whole": all(
            abs(evidence.prototype.loc[1, ours] - PROTOTYPE[theirs]) <= half
            for ours, theirs, half in (("clean", "clean", 5e-5), ("head", "cut", 5e-5), ("all", "all", 5e-3))
        ),
        "baselines": {name: percent(value) for name, value in evidence.baselines.items()},
        "same_top": percent(evidence.same_top),
        "top_weight": evidence.top_weight,
        "minutes": evidence.seconds / 60,
    }


def _effects_said(evidence: Evidence, tables: Tables) -> dict[str, Any]:
    heads = tables.heads.set_index("condition")
    columns = tables.cuts[tables.cuts["family"] == "column"]
    loss = evidence.frame.pivot(index="example", columns="condition", values="loss")
    mapping = heads[heads["agreement"] > 0.95].reset_index().sort_values("effect").to_dict("records")
    return {
        "cheapest": mapping[0] if mapping else None,
        "dearest": mapping[-1] if mapping else None,
        "by_median": heads["median"].idxmax(),
        "cuts": tables.cuts.set_index("condition").to_dict("index"),
        "heads": heads.to_dict("index"),
        "mapping": [str(label) for label in heads.index[heads["agreement"] > 0.95]],
        "median_head": percent(float(heads["agreement"].median())),
        "ranked": list(heads.sort_values("effect", ascending=False).index),
        "wins": int((loss[list(heads.index)].idxmax(axis=1) == MAPPER).sum()),
        "other_columns": list(columns.loc[columns["condition"] != COLUMN, "effect"]),
        "summed": float(heads["effect"].sum()),
        "small": int((heads["effect"].abs() <= NONE * _clean(evidence)).sum()),
    }


def _provenance(evidence: Evidence) -> dict[str, Any]:
    return {
        "command": "workbench reproduce rxnmapper" + (" --quick" if evidence.quick else ""),
        "made_with": provenance() | {"transformers": importlib.metadata.version("transformers")},
        "model": {"from": REQUIREMENT, "wheel_sha256": WHEEL_SHA256},
        "batch": {"digest": evidence.made.batch.digest(), "copies": COPIES, "seed": evidence.seed},
        "conditions": {
            one.label: [intervention.model_dump(mode="json") for intervention in one.interventions]
            for one in evidence.conditions
        },
        "seconds_on_one_thread": round(evidence.seconds, 1),
        "chunk": CHUNK,
    }
