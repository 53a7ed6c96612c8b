"""The command `bdfl reproduce`: figures and times in seconds, accuracies in hours, with a view of how far they are."""

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

_PATIENCE_S = 2.0  # plain lines come no more often
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
        int | None, typer.Option("--seeds", help="Number of seeds; 20 unless given, 1 where models are trained.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", help="With --data: rounds to train, the paper's unless given.")
    ] = None,
    local_steps: Annotated[
        int | None, typer.Option("--local-steps", help="With --data: local epochs (or updates) really made in a round.")
    ] = None,
    unit: Annotated[str | None, typer.Option("--unit", help="With --data: local steps are epochs or updates.")] = None,
    batch: Annotated[int | None, typer.Option("--batch", help="With --data: samples in a mini-batch.")] = None,
    evaluate_every: Annotated[
        int | None, typer.Option("--evaluate-every", help="With --data: rounds from one evaluation to the next.")
    ] = None,
    schedulers: Annotated[
        str | None, typer.Option("--schedulers", help="With --data: comma-separated, such as drc,exact:tradeoff=50.")
    ] = None,
    only: Annotated[str | None, typer.Option("--only", help="With --data: cifar10 or svhn alone.")] = None,
    changes: SetOption = None,
    workers: WorkersOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make the paper's figures and its table, our numbers beside the paper's, with verdicts.

    Without --data nothing is trained, and table4 has times alone. With --data every run is trained in a folder of its
    own below OUT/runs: the same command again goes on with what was stopped and uses what is done. Simulated time does
    not depend on how much is really trained, so a short table has the paper's delays; the output says what is short.

    Examples:

      bdfl reproduce table4

      bdfl reproduce all --out results

      bdfl reproduce table4 --data images --rounds 20 --local-steps 1 --only cifar10
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
    """What options change in the scenarios, as `key=value`; named options win over --set."""
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
    """Where the campaign is, and how long the rest takes if rounds take what they took so far."""

    def __init__(self) -> None:
        self.last: CampaignProgress | None = None
        self._started_s = time.monotonic()

    def left_s(self) -> float:
        """Seconds until all runs are over; NaN before the first round."""
        if self.last is None:
            return float("nan")
        return (time.monotonic() - self._started_s) / self.last.rounds_trained * self.last.rounds_left

    def line(self) -> str:
        """Run, round, accuracy and time left in one line."""
        from bdfl.cli.live import show_duration

        if self.last is None:
            return "preparing"
        accuracy = "" if self.last.accuracy is None else f", accuracy {100 * self.last.accuracy:.1f} %"
        return (
            f"run {self.last.run} of {self.last.num_runs} ({self.last.title}): round {self.last.round} of"
            f" {self.last.rounds}{accuracy}, {show_duration(self.left_s())} left for all"
        )

    def place(self) -> str:
        """What the last round was, for people who stopped it."""
        if self.last is None:
            return "before the first round was over"
        return f"in run {self.last.run} of {self.last.num_runs} ({self.last.title}) after round {self.last.round}"


@contextmanager
def show_campaign(view: CampaignView) -> Iterator[Callable[["CampaignProgress"], None]]:
    """Inside, what the function given is told is on the screen (stderr): a live line, or plain lines elsewhere."""
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
