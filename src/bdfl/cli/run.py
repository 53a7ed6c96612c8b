"""`bdfl run` and `bdfl report`: train a model on a simulated network, and report on it."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdfl.cli.data import TrackOption, open_trackers, tracking_run
from bdfl.cli.options import (
    AddressOption,
    AllowOption,
    DataOption,
    Engine,
    EngineOption,
    FlowerModelOption,
    FlowerOption,
    JsonOption,
    RoundsOption,
    SchedulerOption,
    SeedOption,
    SetOption,
    complete_scenario,
    open_scenario,
    validate_address,
)
from bdfl.cli.terminal import (
    FAILED_EXIT,
    INTERRUPTED_EXIT,
    BadUsage,
    print_files,
    print_json,
    print_out,
    progress,
    say,
    writing_to,
)

if TYPE_CHECKING:
    from bdfl.experiment.run_folder import RunFolder
    from bdfl.experiment.training_run import Run, RunOptions
    from bdfl.learning.flower_trainer import OnRehearsed
    from bdfl.records import LearningRound, RoundRecord
    from bdfl.tracking import Tracker

RUNS = Path("runs")


def run(
    scenario: Annotated[
        str | None,
        typer.Argument(
            metavar="[SCENARIO]",
            help="Scenario file, or a shipped scenario such as quickstart.",
            autocompletion=complete_scenario,
        ),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="FOLDER", help="Resume the run in this folder.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder of the run.", show_default="runs/NAME-SCHEDULER-SEED"),
    ] = None,
    scheduler: SchedulerOption = None,
    data: DataOption = None,
    flower: FlowerOption = None,
    flower_model: FlowerModelOption = None,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, help="Training processes.", show_default="by engine and cores"),
    ] = None,
    engine: EngineOption = Engine.LOCAL,
    address: AddressOption = None,
    changes: SetOption = None,
    track: TrackOption = None,
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train a model on a simulated network with a chain.

    The clients are members of the network: they train, agree on a block in every round and verify each other. The
    output shows accuracy, delay and energy of every round.

    Writes a folder with the resolved scenario, the chain, records (Parquet), models (safetensors), figures and
    report.html.

    A stopped or killed run continues with --resume and ends in the same bytes. Functions that its folder names run
    only with --allow, since a folder may come from others.

    Examples:
      bdfl run quickstart
      bdfl run paper-cifar10 --data path/to/cifar10 --rounds 20
      bdfl run quickstart --scheduler exact:tradeoff=50 --seed 1
      bdfl run quickstart --flower mypackage.client:client_fn
      bdfl run quickstart --engine ray --address 10.0.0.1:6379
      bdfl run quickstart --track tensorboard:results/board
      bdfl run --resume runs/quickstart-drc-0
    """
    from bdfl.experiment.training_run import resume as resume_run, run as run_scenario
    from bdfl.scheduling.registry import choose_scheduler

    validate_address(engine, address)
    shown = _ShownRun(open_trackers(track), is_continued=resume is not None)
    if resume is not None:
        others = (scenario, out, data or None, flower, flower_model, rounds or None, seed, scheduler or None)
        if changes or any(other is not None for other in others):
            raise BadUsage(
                "--resume: goes on with what its folder says, only --workers, --engine, --track and --allow beside it"
            )
        with shown, writing_to(resume):
            made = resume_run(resume, frozenset(allow or ()), shown.options(workers, engine, address))
            shown.finish(made, as_json=as_json)
        return
    if scenario is None:
        raise BadUsage("run: a SCENARIO is missing, such as quickstart, or --resume FOLDER")
    if allow:
        raise BadUsage("--allow: says what the folder of --resume may run; a scenario that you give runs what it names")
    chosen = open_scenario(scenario, changes, rounds, seed, data, flower, flower_model)
    chosen = chosen if scheduler is None else choose_scheduler(chosen, scheduler)
    path = out or RUNS / f"{chosen.name}-{chosen.scheduler.name}-{chosen.seed}"
    with shown, writing_to(path):
        shown.finish(run_scenario(chosen, path, shown.options(workers, engine, address)), as_json=as_json)


def report(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a run, finished or not.")],
    allow: AllowOption = None,
) -> None:
    """Write the tables, figures and report.html of a run again.

    Example:
      bdfl report runs/quickstart-drc-0
    """
    from bdfl.experiment.training_run import RunOptions, load_run

    with writing_to(folder), _rehearsing() as on_rehearsed:
        made = load_run(folder, frozenset(allow or ()), RunOptions(on_rehearsed=on_rehearsed, write=_write))
    print_files(made.files)
    _refuse_invalid(made)


class _ShownRun:
    """A run on the terminal and in its trackers, from the moment its folder is there."""

    def __init__(self, trackers: "Mapping[str, Tracker]", *, is_continued: bool) -> None:
        self._trackers = trackers
        self._is_continued = is_continued
        self._tracked = ExitStack()
        self._viewed = ExitStack()
        self._folder: RunFolder | None = None

    def __enter__(self) -> "_ShownRun":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._viewed.close()
        self._tracked.__exit__(kind, error, trace)  # type: ignore[arg-type]
        if isinstance(error, KeyboardInterrupt) and self._folder is not None:
            from bdfl.scenario.files import named_functions

            scenario, done = self._folder.scenario, len(self._folder.rounds)
            allowed = "".join(f" --allow {name}" for name in dict.fromkeys(named_functions(scenario).values()))
            way = f"bdfl run --resume {self._folder.path}{allowed}"
            say(f"stopped after round {done} of {scenario.rounds}; go on: {way}", err=True)
            raise typer.Exit(INTERRUPTED_EXIT) from None

    def options(self, workers: int | None, engine: Engine, address: str | None) -> "RunOptions":
        """Return the options of the run shown here."""
        from bdfl.experiment.training_run import RunOptions

        return RunOptions(
            workers=workers,
            on_ray=engine is Engine.RAY,
            address=address,
            on_rehearsed=self._viewed.enter_context(_rehearsing()),
            on_begun=self._begin,
            on_planned=lambda planned: self._view.plan_round(planned),
            on_settled=self._settle,
            write=_write,
        )

    def _begin(self, folder: "RunFolder") -> None:
        from bdfl.cli.progress import RunView, show_run

        self._folder = folder
        self._tracking = self._tracked.enter_context(
            tracking_run(self._trackers, folder, is_continued=self._is_continued)
        )
        self._view = self._viewed.enter_context(show_run(RunView(folder.scenario, len(folder.rounds))))

    def _settle(self, record: "RoundRecord", row: "LearningRound") -> None:
        self._view.recall_round(record, row)
        self._tracking.settle(record, row)

    def finish(self, made: "Run", *, as_json: bool) -> None:
        """Print the finished run; raise `Exit` if its chain is not valid."""
        from bdfl.report.run_report import summarise_training, tabulate_training

        self._viewed.close()
        page = next(path for path in made.files if path.suffix == ".html")
        self._tracking.files = [page]
        if as_json:
            print_json(summarise_training(made))
        else:
            print_out(*tabulate_training(made))
            say(f"run    {made.folder}")
            say(f"report {page}")
        _refuse_invalid(made)


@contextmanager
def _rehearsing() -> "Iterator[OnRehearsed]":
    """Yield a function that shows how many Flower clients told their number of samples, as soon as one has."""
    with ExitStack() as stack:
        updates: list[OnRehearsed] = []

        def show(done: int, total: int) -> None:
            if not updates:
                updates.append(stack.enter_context(progress("asking Flower clients", "clients")))
            updates[0](done, total)
            if done == total:
                stack.close()

        yield show


def _write(made: "Run") -> "list[Path]":
    from bdfl.report.page import write_run  # after the checks for missing extras

    return write_run(made)


def _refuse_invalid(made: "Run") -> None:
    if made.verification is not None and made.verification.failure is not None:
        say(f"error: the chain is not valid: {made.verification.failure}", err=True)
        raise typer.Exit(FAILED_EXIT)
