"""The command line: wiring only. What is heavy is imported inside the command that needs it."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from workbench.catalogue import entries
from workbench.catalogue import load as load_entry

INTERRUPTED = 130
REFUSED = 2

TaskName = Annotated[str, typer.Argument(help="A task, as `workbench tasks` lists them.")]
AnalysisName = Annotated[str, typer.Argument(help="An analysis, as `workbench analyses` lists them.")]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Say what an attention weight is evidence of, then test the rest.",
    epilog="Set WORKBENCH_TRACEBACK=1 to see where an error was raised.",
)


study_commands = typer.Typer(no_args_is_help=True, help="Plan and run studies that are declared in a file.")
runs_commands = typer.Typer(no_args_is_help=True, help="What lies in the folder of runs.")
app.add_typer(study_commands, name="study")
app.add_typer(runs_commands, name="runs")

StudyFile = Annotated[Path, typer.Argument(help="A study, as .toml or .json.")]
RunsHome = Annotated[Path | None, typer.Option(help="Where runs lie.  [default: $WORKBENCH_HOME, or ./runs]")]


def main() -> None:
    """The console script. Exit codes: 0 done, 1 a defect (with its traceback), 2 refused, 130 stopped by Ctrl-C."""
    app()


def _plainly(command: Callable[..., None]) -> Callable[..., None]:
    """The command with its refusals told in one paragraph on stderr."""

    @functools.wraps(command)
    def told(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt:
            typer.echo("workbench: stopped by Ctrl-C", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            from workbench.faults import paragraph

            text = None if os.environ.get("WORKBENCH_TRACEBACK") else paragraph(error)
            if text is None:
                raise
            typer.echo(f"workbench: {text}", err=True)
            raise typer.Exit(REFUSED) from None

    return told


@app.command()
@_plainly
def reproduce(
    name: AnalysisName,
    seeds: Annotated[int | None, typer.Option(min=1, help="Models of each kind.  [default: the analysis' own]")] = None,
    out: Annotated[Path, typer.Option(help="The report is written to OUT/NAME.")] = Path("reports"),
    quick: Annotated[bool, typer.Option("--quick", help="Small and fast: shows that it runs, no more.")] = False,
) -> None:
    """Run an analysis from nothing and write its report: tables, figures, verdicts."""
    analysis = load_entry("analysis", name)
    folder = analysis(out=out, seeds=seeds, quick=quick, progress=_progress())
    typer.echo(f"report: {folder}")


@app.command()
@_plainly
def tasks() -> None:
    """List the installed tasks."""
    _list("task")


@app.command()
@_plainly
def analyses() -> None:
    """List the installed analyses."""
    _list("analysis")


@app.command()
@_plainly
def train(
    task: TaskName,
    seed: Annotated[list[int] | None, typer.Option(help="Model seed; give it again for more.  [default: 0]")] = None,
    layers: Annotated[int, typer.Option(min=1, help="Layers.")] = 2,
    heads: Annotated[int, typer.Option(min=1, help="Heads of each layer.")] = 1,
    width: Annotated[int, typer.Option(min=1, help="Width of the residual stream.")] = 32,
    norm: Annotated[str, typer.Option(help="Where LayerNorm stands: post, pre or none.")] = "post",
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps.  [default: the recipe's own]")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    home: Annotated[
        Path | None, typer.Option(help="Where checkpoints lie.  [default: $WORKBENCH_HOME, or ./runs]")
    ] = None,
) -> None:
    """Train one model per seed, or find the same model trained before, and print where its checkpoint is."""
    made = load_entry("task", task)()
    from workbench.models.config import ModelConfig
    from workbench.recipe import Recipe
    from workbench.training import train_many

    shape = {"n_layers": layers, "n_heads": heads, "d_model": width, "norm": norm}
    config = ModelConfig.model_validate({"d_vocab": len(made.vocabulary), "n_ctx": made.length, **shape})
    recipe = Recipe() if steps is None else Recipe(steps=steps)
    seeds = list(dict.fromkeys(seed or [0]))
    trained = train_many(made, config, recipe, seeds, device=device, home=home, progress=_progress())
    for model in trained:
        last = model.curve[-1]
        typer.echo(
            f"seed {model.seed}  step {last['step']}  loss {last['loss']:.4f}  "
            f"accuracy {last['accuracy']:.3f}  {model.folder}"
        )


@app.command()
@_plainly
def show(
    task: TaskName,
    tokens: Annotated[str, typer.Option(help='One example in the task\'s words, as "c 5 a 2 f 7 b 0 a".')],
    checkpoint: Annotated[Path | None, typer.Option(help="A checkpoint's folder.  [default: the task's]")] = None,
    out: Annotated[Path | None, typer.Option(help=".svg, .png or .pdf.  [default: TASK-patterns.svg]")] = None,
) -> None:
    """Say what a model predicts for one example, and draw every head's attention pattern."""
    made = load_entry("task", task)()
    from workbench.show import show as show_example

    file = out or Path(f"{task}-patterns.svg")
    typer.echo(show_example(made, tokens, file, checkpoint).text)
    typer.echo(f"patterns: {file}")


@app.command()
@_plainly
def probe(
    folder: Annotated[Path, typer.Argument(help="A checkpoint, or a Hugging Face model's folder.")],
) -> None:
    """Print which sites of a saved model are live, read-only or absent, by measurement."""
    from workbench.liveness import saved, told

    typer.echo(told(saved(folder)))


@study_commands.command("plan")
@_plainly
def plan_study(
    file: StudyFile,
    home: Annotated[Path | None, typer.Option(help="Where runs lie.  [default: $WORKBENCH_HOME, or ./runs]")] = None,
) -> None:
    """Print what a study will run: models, conditions, cells, what is there already, and about how long it takes."""
    from workbench.planning import plan, told
    from workbench.study_file import read_study

    typer.echo(told(plan(read_study(file), home=home)))


@study_commands.command("run")
@_plainly
def run_study_file(
    file: StudyFile,
    out: Annotated[Path | None, typer.Option(help="Folder for the results.  [default: HOME/studies/NAME]")] = None,
    executor: Annotated[str, typer.Option(help="local, pool or ray.")] = "pool",
    processes: Annotated[int | None, typer.Option(min=1, help="Worker processes.  [default: one a core]")] = None,
    address: Annotated[str | None, typer.Option(help="A Ray cluster's address.")] = None,
    engine: Annotated[str, typer.Option(help="auto, or hooks: a whole pass for every condition.")] = "auto",
    home: Annotated[Path | None, typer.Option(help="Where runs lie.  [default: $WORKBENCH_HOME, or ./runs]")] = None,
    wandb: Annotated[str | None, typer.Option(help="A Weights & Biases project to log to.  [default: none]")] = None,
    wandb_mode: Annotated[str, typer.Option(help="offline (kept in HOME/wandb), online or disabled.")] = "offline",
) -> None:
    """Run a study; what was measured before is not measured again, and a study that was stopped goes on."""
    from workbench.block_by_block import check_engine
    from workbench.holdings import place
    from workbench.outcome import write_outcome
    from workbench.studies import run_declared
    from workbench.study_file import read_study

    study = read_study(file)
    if wandb is not None:
        from workbench.wandb_runs import check_mode

        check_mode(wandb_mode)
    try:
        found, notes = run_declared(
            study,
            home=home,
            executor=executor,
            processes=processes,
            address=address,
            engine=check_engine(engine),
            progress=_progress(),
        )
        written = write_outcome(study, found, notes, out or place(home) / "studies" / file.stem)
    except KeyboardInterrupt:
        typer.echo("what was measured is kept; the same command goes on from there", err=True)
        raise
    typer.echo(f"results: {written}")
    if wandb is not None:
        from workbench.logging_to_wandb import log_declared

        logged = log_declared(study, found, notes, project=wandb, mode=wandb_mode, home=home, name=file.stem)
        typer.echo(f"wandb: {logged or wandb_mode}")


@app.command()
@_plainly
def report(
    run: Annotated[Path, typer.Argument(help="The folder that `workbench study run` wrote.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the page.  [default: RUN itself]")] = None,
    home: RunsHome = None,
) -> None:
    """Write a finished run as one page: README.md and index.html, which opens without a network."""
    from workbench.page import write_page

    typer.echo(f"report: {write_page(run, out, home=home)}")


@runs_commands.command("list")
@_plainly
def list_runs(home: RunsHome = None) -> None:
    """List the measured cells, counted by task and model, and the trained models."""
    from workbench.holdings import holdings

    typer.echo(holdings(home))


@runs_commands.command("check")
@_plainly
def check_runs(home: RunsHome = None) -> None:
    """Read every block; damaged ones are moved aside and named."""
    from workbench.holdings import cells

    found = cells(home).damaged()
    typer.echo("\n".join(f"damaged, moved aside: {name}" for name in found) or "every block is whole")


@runs_commands.command("prune")
@_plainly
def prune_runs(
    home: RunsHome = None,
    everything: Annotated[bool, typer.Option("--all", help="All cells, not only what belongs to none.")] = False,
) -> None:
    """Remove files that belong to no cell, and what was moved aside; with --all, every cell."""
    from workbench.holdings import cells

    freed = cells(home).prune([] if everything else None)
    typer.echo(f"{freed / 1e6:.1f} MB freed")


def _list(kind: str) -> None:
    found = entries(kind)
    if not found:
        typer.echo(f"no {kind} is installed", err=True)
    width = max((len(entry.name) for entry in found), default=0)
    for entry in found:
        about = f"cannot be used: {entry.fault}" if entry.fault else entry.line
        typer.echo(f"{entry.name:<{width}}  {entry.target}  {about}".rstrip())


def _progress() -> bool:
    return sys.stderr.isatty()


if __name__ == "__main__":
    main()
