"""The lecture's report: what was measured, as files a person and a program read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from analyses.lecture_claims import claims, parts
from analyses.lecture_evidence import Evidence, contrasts, parquet
from analyses.lecture_figures import figures
from analyses.lecture_table import ROWS, TWO, table
from workbench.checkpoints import provenance
from workbench.report import write_report
from workbench.tables import markdown_text, percent, to_csv, to_markdown

COMMITTED = Path(__file__).resolve().parent.parent / "reports" / "lecture"


SAID = {row.id: row.said for row in ROWS}


@dataclass(frozen=True)
class Tables:
    """The report's tables, each written under its name. All follow from the results frame and the exact guesses."""

    table: pd.DataFrame
    claims: pd.DataFrame
    parts: pd.DataFrame
    contrasts: pd.DataFrame

    @classmethod
    def of(cls, frame: pd.DataFrame, exact: Mapping[str, float]) -> Tables:
        measured = table(frame, exact)
        return cls(measured, claims(frame, measured), parts(frame), contrasts(frame))


def write(folder: Path, evidence: Evidence) -> Path:
    """Writes the report, prints its table, and says where it differs from the committed one."""
    tables = Tables.of(evidence.frame, evidence.exact)
    drawn = figures(evidence, tables.table)
    files: dict[str, str | bytes] = {
        "README.md": readme(evidence, tables),
        **{f"{name}.csv": to_csv(one) for name, one in vars(tables).items()},
        "results.parquet": parquet(evidence.frame),
        "provenance.json": json.dumps(_provenance(evidence), indent=1, sort_keys=True, ensure_ascii=False),
        **drawn,
    }
    committed = None
    if folder.resolve() != COMMITTED and (COMMITTED / "claims.csv").is_file():
        committed = pd.read_csv(COMMITTED / "claims.csv")
    write_report(folder, files)
    print(_summary(tables.claims, committed))
    return folder


def readme(evidence: Evidence, tables: Tables) -> str:
    """The report a person reads."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True, autoescape=False,
    )  # fmt: skip
    environment.filters["text"] = markdown_text
    measured, claimed = tables.table, tables.claims
    by_id = measured.set_index("id")
    rows = measured[measured["id"].isin([row.id for row in ROWS])]
    return environment.get_template("lecture.md.j2").render(
        quick=evidence.quick,
        n_models=len(evidence.trained[TWO]),
        n=evidence.studies[TWO].n,
        recipe=evidence.recipe,
        main=to_markdown(_shown(rows)),
        controls=to_markdown(_shown(measured[~measured["id"].isin(rows["id"])]).drop(columns=["lecture", "verdict"])),
        claims=claimed[claimed["kind"] == "claim"].to_dict("records"),
        parts=to_markdown(_shown_parts(tables.parts)),
        contrasts=to_markdown(_shown_contrasts(tables.contrasts)),
        family=int(tables.contrasts["family"].iloc[0]),
        guesses=to_markdown(_guesses(evidence, by_id)),
        seeds=to_markdown(_by_seed(evidence.frame)),
        overlap=_overlap(evidence.frame),
        failed=_failed(evidence.frame),
        differing=_differing(rows),
        agreeing=[row["id"] for row in rows.to_dict("records") if row["verdict"] == "agrees"],
        value=lambda id: percent(by_id.loc[id, "estimate"]),
        span=lambda id: f"{percent(by_id.loc[id, 'seed_low'])} to {percent(by_id.loc[id, 'seed_high'])}",
        notes=evidence.notes.to_dict("records"),
        weight_alone=together_of(tables.parts, "weight without effect"),
        effect_alone=together_of(tables.parts, "effect without weight"),
        one_head=claimed.set_index("id").loc["one-head", "verdict"],
        counts=_counts(measured),
    )


def _shown(rows: pd.DataFrame) -> pd.DataFrame:
    out = []
    for row in rows.to_dict("records"):
        interval = f"{percent(row['low'])} to {percent(row['high'])}" if row["low"] < row["high"] else "exact"
        seeds = "" if pd.isna(row["seed_low"]) else f"{percent(row['seed_low'])} to {percent(row['seed_high'])}"
        out.append(
            {
                "id": row["id"],
                "what": row["statement"],
                "lecture": SAID.get(row["id"], ""),
                "here": percent(row["estimate"]),
                "95% interval": interval,
                "lowest to highest seed": seeds,
                "models": row["n_models"],
                "verdict": row["verdict"],
            }
        )
    return pd.DataFrame(out).astype({"models": "Int64"})


def _shown_parts(rows: pd.DataFrame) -> pd.DataFrame:
    shares = {name: [percent(x) for x in rows[name]] for name in ("estimate", "low", "high")}
    interval = [f"{low} to {high}" for low, high in zip(shares["low"], shares["high"], strict=True)]
    out = rows[["claim", "part", "quantity", "must lie"]].assign(here=shares["estimate"])
    return out.assign(**{"95% interval": interval, "verdict": rows["verdict"]})


def _shown_contrasts(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "accuracy in": rows["a"],
            "less accuracy in": rows["b"],
            "difference": [percent(x) for x in rows["estimate"]],
            "95% interval": [f"{percent(a)} to {percent(b)}" for a, b in zip(rows["low"], rows["high"], strict=True)],
            "models with p < 0.05": [
                f"{k} of {n}" for k, n in zip(rows["models_below_0.05"], rows["n_models"], strict=True)
            ],
            "smallest p": [_p(p) for p in rows["smallest_p_holm"]],
            "largest p": [_p(p) for p in rows["largest_p_holm"]],
        }
    )


def together_of(rows: pd.DataFrame, words: str) -> str:
    """One verdict for the parts that begin with these words: supported only where each is."""
    verdicts = set(rows.loc[rows["part"].str.startswith(words), "verdict"])
    return "supported" if verdicts == {"supported"} else "not supported"


def _p(value: float) -> str:
    """A p-value; one that is too small for a float is said to be below 1e-300."""
    return "below 1e-300" if value < 1e-300 else f"{value:.2g}"


def _guesses(evidence: Evidence, by_id: pd.DataFrame) -> pd.DataFrame:
    names = {
        "any": "any digit",
        "seen": "the digit of a random pair",
        "mode": "the most frequent digit, ties at random",
    }
    return pd.DataFrame(
        {
            "guess": [names[name] for name in evidence.exact],
            "exact": [f"{value:.4%}" for value in evidence.exact.values()],
            "sampled": [f"{evidence.sampled[name]:.2%}" for name in evidence.exact],
            "lecture": [SAID[f"guess-{name}"] for name in evidence.exact],
        }
    )


def _by_seed(frame: pd.DataFrame) -> pd.DataFrame:
    ran = frame[frame["skipped"].isna()]
    means = ran.groupby(["model", "model_seed", "condition"], observed=True)["accuracy"].mean()
    wide = means.unstack("condition").reset_index()
    out = pd.DataFrame({"model": wide["model"].astype(str), "model seed": wide["model_seed"].astype(str)})
    for condition in frame["condition"].cat.categories:
        out[condition] = [percent(x) for x in wide[condition]]
    return out


def _overlap(frame: pd.DataFrame) -> dict[str, Any]:
    """How many test sequences each two-layer model had met in training, and the accuracy without them."""
    clean = frame[(frame["model"] == TWO) & (frame["condition"] == "clean") & frame["skipped"].isna()]
    met = clean.groupby("model_seed")["drawn"].sum()
    without = clean[clean["drawn"] == 0].groupby("model_seed")["accuracy"].mean()
    return {
        "low": int(met.min()),
        "high": int(met.max()),
        "mean": f"{met.mean():.1f}",
        "accuracy": percent(without.mean()),
    }


def _failed(frame: pd.DataFrame) -> list[str]:
    """Two-layer models below 99.5% with nothing cut, the lecture's 100% rounded."""
    clean = frame[(frame["model"] == TWO) & (frame["condition"] == "clean") & frame["skipped"].isna()]
    means = clean.groupby("model_seed")["accuracy"].mean()
    return [f"model seed {seed}: {percent(mean)}" for seed, mean in means.items() if mean < 0.995]


def _differing(rows: pd.DataFrame) -> list[dict[str, Any]]:
    out = []
    for row in rows[rows["verdict"] == "differs"].to_dict("records"):
        exact = row["n_models"] == 0
        inside = row["low"] <= row["lecture"] <= row["high"]
        shares = {name: percent(row[name]) for name in ("estimate", "low", "high")}
        out.append({"id": row["id"], "lecture": SAID[row["id"]], "exact": exact, "inside": inside, **shares})
    return out


def _counts(measured: pd.DataFrame) -> dict[str, int]:
    own = measured[measured["n_models"] > 0]
    return {name: int(own[name].max()) for name in ("planned", "run", "skipped")}


def _provenance(evidence: Evidence) -> dict[str, Any]:
    return {
        "command": "workbench reproduce lecture"
        + (" --quick" if evidence.quick else "")
        + f" --seeds {len(evidence.trained[TWO])}",
        "made_with": provenance(),
        "task": {"name": evidence.task.name, "arguments": evidence.task.model_dump()},
        "studies": {label: study.model_dump(mode="json") for label, study in evidence.studies.items()},
        "checkpoints": {
            label: [
                {
                    "seed": one.seed,
                    "key": one.folder.name,
                    "weights_sha256": one.about["weights_sha256"],
                    "made_with": one.about["made_with"],
                    "definition": one.about["definition"],
                }
                for one in trained
            ]
            for label, trained in evidence.trained.items()
        },
    }


def _summary(claimed: pd.DataFrame, committed: pd.DataFrame | None) -> str:
    """The table as lines of text, with the committed report's figures where there is one."""
    known = {} if committed is None else committed.set_index("id").to_dict("index")
    head = f"{'id':<14}{'lecture':>12}{'here':>9}  {'95% interval':<18}{'verdict':<14}"
    lines = [head + ("committed report" if known else "")]
    moved = 0
    for row in claimed.to_dict("records"):
        interval = f"{percent(row['low'])} to {percent(row['high'])}" if row["low"] < row["high"] else "exact"
        shares = f"{SAID.get(row['id'], ''):>12}{percent(row['estimate']):>9}"
        line = f"{row['id']:<14}{shares}  {interval:<18}{row['verdict']:<14}"
        if row["id"] in known:
            other = known[row["id"]]
            change = row["estimate"] - other["estimate"]
            same = abs(change) < 5e-7 and row["verdict"] == other["verdict"]
            moved += not same
            line += (
                "the same" if same else f"{percent(other['estimate'])} ({100 * change:+.2f} points), {other['verdict']}"
            )
        lines.append(line.rstrip())
    if known:
        n = int(committed["n_models"].max())  # type: ignore[index]
        lines.append(
            f"{moved} of {len(claimed)} rows differ from the committed report, which has {n} models of each depth."
        )
    return "\n".join(lines)
