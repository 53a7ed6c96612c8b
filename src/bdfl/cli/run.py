"""`bdfl run` and `bdfl report`: train a model on a simulated network, and report on it."""

import time
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
from bdfl.errors import require

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from bdfl.experiment.run_folder import RunFolder
    from bdfl.experiment.training_run import Federated
    from bdfl.learning.training import Trainer
    from bdfl.ledger.verify import Verification
    from bdfl.records import LearningRound, RoundRecord
    from bdfl.scenario import Scenario
    from bdfl.tracking import Tracking

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
    from bdfl.experiment.run_folder import create_run_folder, open_run_folder, refuse_existing
    from bdfl.experiment.training_run import found_chain
    from bdfl.scheduling.registry import choose_scheduler

    validate_address(engine, address)
    trackers = open_trackers(track)
    if resume is not None:
        others = (scenario, out, data or None, flower, flower_model, rounds or None, seed, scheduler or None)
        if changes or any(other is not None for other in others):
            raise BadUsage(
                "--resume: goes on with what its folder says, only --workers, --engine, --track and --allow beside it"
            )
        with writing_to(resume), open_run_folder(resume, frozenset(allow or ())) as folder:
            federated = _prepare(folder.scenario)
            with (
                _open(federated, workers, engine, address) as trainer,
                tracking_run(trackers, folder, is_continued=True) as tracking,
            ):
                _train(federated, trainer, folder, tracking, as_json=as_json)
        return
    if scenario is None:
        raise BadUsage("run: a SCENARIO is missing, such as quickstart, or --resume FOLDER")
    if allow:
        raise BadUsage("--allow: says what the folder of --resume may run; a scenario that you give runs what it names")
    chosen = open_scenario(scenario, changes, rounds, seed, data, flower, flower_model)
    chosen = chosen if scheduler is None else choose_scheduler(chosen, scheduler)
    path = out or RUNS / f"{chosen.name}-{chosen.scheduler.name}-{chosen.seed}"
    refuse_existing(path)
    # Data, model and genesis first: an error in them leaves no folder behind.
    federated = _prepare(chosen)
    with _open(federated, workers, engine, address) as trainer:
        found_chain(federated, trainer)
        with writing_to(path), create_run_folder(path, chosen) as folder, tracking_run(trackers, folder) as tracking:
            _train(federated, trainer, folder, tracking, as_json=as_json)


def report(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a run, finished or not.")],
    allow: AllowOption = None,
) -> None:
    """Write the tables, figures and report.html of a run again.

    Example:
      bdfl report runs/quickstart-drc-0
    """
    from bdfl.experiment.run_folder import open_run_folder
    from bdfl.experiment.training_run import replay_run, verify_run

    with writing_to(folder), open_run_folder(folder, frozenset(allow or ())) as opened:
        federated = _prepare(opened.scenario)
        from bdfl.report.page import write_run  # after the checks for missing extras

        records = replay_run(federated, opened)
        if records is None:
            raise BadUsage(f"{folder}: no round is over yet, nothing to report")
        verification = verify_run(opened)
        print_files(write_run(*records, opened.scenario, folder, verification))
        _refuse_invalid(verification)


def _prepare(scenario: "Scenario") -> "Federated":
    """Load the run's data or Flower clients; the latter train once to tell their number of samples."""
    from bdfl.experiment.training_run import prepare_run

    if scenario.learning.flower is None:
        prepared = prepare_run(scenario)
    else:
        with progress("asking Flower clients", "clients") as on_rehearsed:
            prepared = prepare_run(scenario, on_rehearsed)
    require("the report of a run", "matplotlib", "pyarrow")  # before hours of training
    return prepared


def _open(
    federated: "Federated", workers: int | None, engine: Engine, address: str | None
) -> "AbstractContextManager[Trainer]":
    if engine is Engine.RAY:
        from bdfl.learning.trainer_pool import open_ray_trainer

        return open_ray_trainer(
            federated.scenario, federated.data, federated.partition, address=address, workers=workers
        )
    from bdfl.experiment.training_run import default_workers
    from bdfl.learning.trainer_pool import open_trainer

    num_workers = default_workers(federated.scenario, federated.data) if workers is None else workers
    return open_trainer(federated.scenario, federated.data, federated.partition, workers=num_workers)


def _train(
    federated: "Federated", trainer: "Trainer", folder: "RunFolder", tracking: "Tracking", *, as_json: bool
) -> None:
    """Train the remaining rounds with a live view, verify the chain and write the report."""
    from bdfl.cli.progress import RunView, show_run
    from bdfl.experiment.training_run import train_run, verify_run
    from bdfl.report.page import write_run
    from bdfl.report.run_report import summarise_training, tabulate_training
    from bdfl.scenario.files import named_functions
    from bdfl.tracking import Outcome

    def on_settled(record: "RoundRecord", row: "LearningRound") -> None:
        view.recall_round(record, row)
        tracking.settle(record, row)

    scenario = folder.scenario
    try:
        with show_run(RunView(scenario, len(folder.rounds))) as view:
            records = train_run(federated, trainer, folder, on_planned=view.plan_round, on_settled=on_settled)
    except KeyboardInterrupt:
        tracking.outcome = Outcome.INTERRUPTED
        done = len(folder.rounds)
        allowed = "".join(f" --allow {name}" for name in dict.fromkeys(named_functions(scenario).values()))
        way = f"bdfl run --resume {folder.path}{allowed}"
        say(f"stopped after round {done} of {scenario.rounds}; go on: {way}", err=True)
        raise typer.Exit(INTERRUPTED_EXIT) from None
    started_s = time.monotonic()
    verification = verify_run(folder)
    verified_s = time.monotonic() - started_s
    files = write_run(*records, scenario, folder.path, verification)
    page = next(path for path in files if path.suffix == ".html")
    tracking.files = [page]
    if as_json:
        print_json(summarise_training(*records, folder.path, verification, verified_s))
    else:
        print_out(*tabulate_training(*records, scenario, verification, verified_s))
        say(f"run    {folder.path}")
        say(f"report {page}")
    _refuse_invalid(verification)


def _refuse_invalid(verification: "Verification") -> None:
    if verification.failure is not None:
        say(f"error: the chain is not valid: {verification.failure}", err=True)
        raise typer.Exit(FAILED_EXIT)
