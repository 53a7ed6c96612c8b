"""`bdfl reproduce`: the paper's figures and times in seconds, its accuracies in hours, with progress."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from bdfl.cli.options import RESULTS, JsonOption, OutOption, SetOption, WorkersOption
from bdfl.cli.run import INTERRUPTED_EXIT, BadUsage
from bdfl.cli.terminal import print_files, print_json, print_out, progress, writing_to
from bdfl.errors import require

if TYPE_CHECKING:
    from bdfl.reproduce import CampaignProgress, Reproduction, TrainingSettings

_PATIENCE_S = 2.0  # between plain lines
_SEEDS, _TRAINED_SEEDS = 20, 1


def reproduce(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="fig2, fig3, fig4, table4 or all.")],
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="DIR", help="Train for table4: folders cifar10 and svhn of Parquet files, or one of them."
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", help="Number of seeds.", show_default="20, or 1 with --data")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", help="With --data: rounds to train.", show_default="the paper's")
    ] = None,
    local_steps: Annotated[
        int | None, typer.Option("--local-steps", help="With --data: local epochs (or updates) trained in a round.")
    ] = None,
    unit: Annotated[
        str | None, typer.Option("--unit", help="With --data: unit of local steps, epochs or updates.")
    ] = None,
    batch: Annotated[int | None, typer.Option("--batch", help="With --data: samples in a mini-batch.")] = None,
    evaluate_every: Annotated[
        int | None, typer.Option("--evaluate-every", help="With --data: rounds between evaluations.")
    ] = None,
    schedulers: Annotated[
        str | None, typer.Option("--schedulers", help="With --data: comma-separated, such as drc,exact:tradeoff=50.")
    ] = None,
    only: Annotated[str | None, typer.Option("--only", help="With --data: only cifar10 or svhn.")] = None,
    changes: SetOption = None,
    workers: WorkersOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Reproduce the paper's figures and table, beside the paper's numbers.

    Without --data nothing is trained, and table4 has times only.

    With --data every run is trained in its own folder below OUT/runs. The same command again resumes what was stopped
    and reuses what is finished. Simulated time does not depend on the amount of training, so a shortened table has the
    paper's delays. The output lists what is shortened.

    Examples:
      bdfl reproduce table4
      bdfl reproduce all --out results
      bdfl reproduce table4 --data images --rounds 20 --only cifar10
    """
    require("reproducing the paper", "matplotlib")
    from bdfl.reproduce import Settings, Target, parse_targets
    from bdfl.reproduce import reproduce as reproduce_target

    targets = parse_targets(what)
    overrides = _list_overrides(changes, rounds, local_steps, unit, batch, evaluate_every)
    _validate_usage(data, overrides, schedulers, only, trains=Target.TABLE4 in targets)
    training = None if data is None else _choose_training(data, seeds, schedulers, only, overrides, workers)
    folder = out or RESULTS
    num_seeds = _SEEDS if seeds is None else seeds
    found = []
    for target in targets:
        with writing_to(folder):
            if training is not None and target is Target.TABLE4:
                found.append(_train(folder, training))
            else:
                with progress(f"reproducing {target.value}", "tasks") as on_progress:
                    found.append(reproduce_target(target, Settings(folder, num_seeds, workers, on_progress)))
        if not as_json:
            _print(found[-1])
    if as_json:
        print_json(found)


def _list_overrides(
    changes: list[str] | None,
    rounds: int | None,
    local_steps: int | None,
    unit: str | None,
    batch: int | None,
    evaluate_every: int | None,
) -> list[str]:
    """Return the overrides of the scenarios as `key=value`; named options win over --set."""
    named = {
        "rounds": rounds,
        "learning.local_steps": local_steps,
        "learning.unit": unit,
        "learning.batch": batch,
        "learning.evaluate_every": evaluate_every,
    }
    return [*(changes or []), *(f"{key}={value}" for key, value in named.items() if value is not None)]


def _validate_usage(
    data: Path | None, overrides: list[str], schedulers: str | None, only: str | None, *, trains: bool
) -> None:
    if data is None and (overrides or schedulers is not None or only is not None):
        given = overrides[0] if overrides else "--schedulers" if schedulers is not None else "--only"
        raise BadUsage(f"reproduce: {given} given, which needs --data DIR: without it the shipped scenarios are played")
    if data is not None and not trains:
        raise BadUsage("reproduce: --data given, which is for table4: figures 2 to 4 need no training")


def _choose_training(
    data: Path,
    seeds: int | None,
    schedulers: str | None,
    only: str | None,
    overrides: list[str],
    workers: int | None,
) -> "TrainingSettings":
    from bdfl.experiment.choices import split_choices
    from bdfl.experiment.comparison import DEFAULT_SCHEDULERS
    from bdfl.reproduce import TrainingSettings

    return TrainingSettings(
        data=data,
        num_seeds=_TRAINED_SEEDS if seeds is None else seeds,
        schedulers=DEFAULT_SCHEDULERS if schedulers is None else tuple(split_choices(schedulers)),
        only=only,
        overrides=tuple(overrides),
        workers=workers,
    )


def _train(folder: Path, training: "TrainingSettings") -> "Reproduction":
    from dataclasses import replace

    from bdfl.reproduce import Settings, Target
    from bdfl.reproduce import reproduce as reproduce_target

    view = CampaignView()
    try:
        with show_campaign(view) as on_progress:
            watched = replace(training, on_progress=on_progress)
            return reproduce_target(Target.TABLE4, Settings(folder, training=watched))
    except KeyboardInterrupt:
        typer.echo(
            f"stopped {view.place()}; the same command goes on from there, its runs are in {folder / 'runs'}", err=True
        )
        raise typer.Exit(INTERRUPTED_EXIT) from None


class CampaignView:
    """Progress of the campaign, with time left estimated from the mean duration of a round."""

    def __init__(self) -> None:
        self.last: CampaignProgress | None = None
        self._started_s = time.monotonic()

    def left_s(self) -> float:
        """Return the estimated seconds left for all runs; NaN before the first round."""
        if self.last is None:
            return float("nan")
        return (time.monotonic() - self._started_s) / self.last.rounds_trained * self.last.rounds_left

    def line(self) -> str:
        """Return run, round, accuracy and time left in one line."""
        from bdfl.cli.live import show_duration

        if self.last is None:
            return "preparing"
        accuracy = "" if self.last.accuracy is None else f", accuracy {100 * self.last.accuracy:.1f} %"
        return (
            f"run {self.last.run} of {self.last.num_runs} ({self.last.title}): round {self.last.round} of"
            f" {self.last.rounds}{accuracy}, {show_duration(self.left_s())} left for all"
        )

    def place(self) -> str:
        """Return the last finished round, for the message of an interrupted campaign."""
        if self.last is None:
            return "before the first round was over"
        return f"in run {self.last.run} of {self.last.num_runs} ({self.last.title}) after round {self.last.round}"


@contextmanager
def show_campaign(view: CampaignView) -> Iterator[Callable[["CampaignProgress"], None]]:
    """Yield a function that shows progress on stderr: a live line on a terminal, else plain lines."""
    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        with console.status(view.line()) as status:

            def update(now: "CampaignProgress") -> None:
                view.last = now
                status.update(view.line())

            yield update
        return
    said_s = time.monotonic()

    def say(now: "CampaignProgress") -> None:
        nonlocal said_s
        view.last = now
        if time.monotonic() - said_s >= _PATIENCE_S or now.rounds_left == 0:
            said_s = time.monotonic()
            typer.echo(view.line(), err=True)

    yield say


def _print(found: "Reproduction") -> None:
    from bdfl.report.tables import tabulate_numbers, tabulate_verdicts

    tables = [tabulate_numbers(table.title, table.header, table.rows) for table in found.tables]
    verdicts = [(verdict.claim, verdict.holds, verdict.found) for verdict in found.verdicts]
    calibrated = f"Calibrated, not in the paper: {', '.join(found.calibrated)}."
    print_out(*found.notes, *tables, tabulate_verdicts(verdicts), calibrated)
    print_files([Path(file) for file in found.files])
