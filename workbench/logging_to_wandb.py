"""Studies and training curves logged to Weights & Biases: only when asked, offline unless said otherwise."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.checkpoints import key, provenance
from workbench.holdings import place
from workbench.results import contrast, metrics, summary
from workbench.study_file import study_text
from workbench.wandb_runs import check_mode, opened, session

if TYPE_CHECKING:
    import pandas as pd

    from workbench.checkpoints import Trained
    from workbench.study import Study

MOST = 10_000
"""Rows of a table that W&B keeps; more go to a second table, since it would drop them in silence."""


def log_study(
    frame: pd.DataFrame,
    notes: pd.DataFrame,
    study: Study,
    *,
    project: str,
    mode: str = "offline",
    folder: Path | str | None = None,
    name: str | None = None,
) -> Path | None:
    """Logs what `run_study` or `run_declared` gave as one W&B run, and gives its folder (None where `mode` is
    "disabled").

    Its configuration: the study, the digest of the examples, the SHA-256 of each model's weights, versions. Its tables:
    `summary`, `contrasts` (each condition less the first one without interventions), `means` (of each trained model)
    and `notes`; tables of more than 10,000 rows go on as `means 2` .... Its numbers: `planned`, `run`, `skipped` rows
    of the frame, and `mean/METRIC/MODEL/MODEL_SEED/CONDITION`.
    mode: "offline" writes to FOLDER/wandb and sends nothing (`wandb sync` sends it later); "online" sends.
    folder: the folder of runs, `$WORKBENCH_HOME` or ./runs by default.

    Raises ValueError for another mode and what is no results frame, `NotLogged` where wandb is not installed or does
    not take the run.

    >>> import pandas as pd
    >>> from workbench import Study
    >>> log_study(pd.DataFrame(), pd.DataFrame(), Study(conditions={"clean": []}, n=1, data_seed=0), project="p",
    ...     mode="disabled")
    """
    check_mode(mode)
    if mode == "disabled":
        return None
    table, means = summary(frame), _means(frame)
    tables = {"summary": table, "contrasts": _contrasts(study, frame, table), "means": means, "notes": notes}
    ran = int(frame["skipped"].isna().sum())
    numbers = {"planned": len(frame), "run": ran, "skipped": len(frame) - ran}
    for row in means.itertuples():
        numbers[f"mean/{row.metric}/{row.model}/{row.model_seed}/{row.condition}"] = row.mean
    known = {what: frame.attrs.get(what) for what in ("examples", "measured", "dtypes")}
    about = {"study": json.loads(study_text(study)), **known, "made_with": provenance()}
    with session(place(folder)) as wandb:
        kind = {"name": name, "job_type": "study", "group": key({"study": about["study"]})}
        with opened(wandb, project, mode, place(folder), config=about, **kind) as run:
            run.log({**numbers, **_as_tables(wandb, tables)})
            return Path(run.dir).parent


def log_training(
    models: Mapping[str, Sequence[Trained]],
    *,
    project: str,
    mode: str = "offline",
    folder: Path | str | None = None,
) -> list[Path]:
    """Logs the training curve of each trained model as a W&B run of its own, grouped by label; gives their folders.

    Each point has `step`, `loss` in nats and `accuracy` from 0 to 1, at the training step that it belongs to. Models
    without a curve, such as wrapped ones, have none to log.

    Raises ValueError where no model has a curve, otherwise as `log_study`.

    >>> log_training({}, project="p", mode="disabled")
    []
    """
    check_mode(mode)
    if mode == "disabled":
        return []
    curved = [(label, one) for label, several in models.items() for one in several if getattr(one, "curve", None)]
    if not curved:
        raise ValueError(f"none of the models under {list(models)} has a training curve; `train` gives models with one")
    folders = []
    with session(place(folder)) as wandb:
        for label, one in curved:
            about = {"model": label, "model_seed": one.seed, **one.about["definition"]}
            about["weights_sha256"] = one.about["weights_sha256"]
            kind = {"name": f"{label}, seed {one.seed}", "job_type": "training", "group": label}
            with opened(wandb, project, mode, place(folder), config=about, **kind) as run:
                for point in one.curve:
                    run.log(point, step=int(point["step"]))
                folders.append(Path(run.dir).parent)
    return folders


def log_declared(
    study: Study,
    frame: pd.DataFrame,
    notes: pd.DataFrame,
    *,
    project: str,
    mode: str = "offline",
    home: Path | str | None = None,
    name: str | None = None,
) -> Path | None:
    """`log_study`, then `log_training` of the models that the study declares as trained here; they are in `home`."""
    from workbench.declared import Pretrained, models_of

    out = log_study(frame, notes, study, project=project, mode=mode, folder=home, name=name)
    ours = {label: one for label, one in study.models.items() if not isinstance(one, Pretrained)}
    if out is not None and ours and study.task is not None:
        trained = models_of(ours, study.task.made(), home=home, progress=False)
        log_training(trained, project=project, mode=mode, folder=home)
    return out


def _means(frame: pd.DataFrame) -> pd.DataFrame:
    """A row for each metric of each cell that ran: model, model_seed, condition, metric, mean, examples."""
    import pandas as pd

    rows = []
    cells = frame[frame["skipped"].isna()].sort_values("example")
    for (model, seed, condition), cell in cells.groupby(["model", "model_seed", "condition"], observed=True):
        for metric in metrics(frame):
            if cell[metric].notna().all():
                mean = float(cell[metric].to_numpy(dtype=float).mean())
                rows.append((model, int(seed), condition, metric, mean, len(cell)))
    return pd.DataFrame(rows, columns=["model", "model_seed", "condition", "metric", "mean", "examples"])


def _contrasts(study: Study, frame: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame | None:
    """Each condition less the first one without interventions that its models have; None where there is no such."""
    import pandas as pd

    untouched, rows = [label for label, edits in study.conditions.items() if not edits], []
    for (model, metric), own in table[table["run"] > 0].groupby(["model", "metric"], observed=True, sort=False):
        there = list(own["condition"])
        base = next((label for label in untouched if label in there), None)
        rows += [contrast(frame, a, base, metric, model) for a in there if base is not None and a != base]
    return pd.concat(rows, ignore_index=True) if rows else None


def _as_tables(wandb: Any, tables: Mapping[str, pd.DataFrame | None]) -> dict[str, Any]:
    out = {}
    for name, table in tables.items():
        if table is None:
            continue
        plain = table.astype(object)
        data = plain.where(plain.notna(), None).to_numpy().tolist()
        for start in range(0, max(len(data), 1), MOST):
            label = f"{name} {start // MOST + 1}" if start else name
            out[label] = wandb.Table(columns=list(table.columns), data=data[start : start + MOST])
    return out
