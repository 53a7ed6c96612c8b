"""Output of a training run: tables, figures and the page in its folder, and a summary for the terminal."""

from pathlib import Path

import msgspec
import numpy as np
from rich.table import Table

from bdfl.experiment.run_folder import BadRunFolder
from bdfl.experiment.training_run import Run
from bdfl.ledger.verify import ModelCheck, Verification
from bdfl.records import RunSummary, summarise_run
from bdfl.records.parquet import write_parquet
from bdfl.report.learning_figures import draw_exhibits
from bdfl.report.page import write_report
from bdfl.report.privacy import describe_privacy
from bdfl.report.style import save_picture
from bdfl.report.tables import new_table, number

FIGURES = "figures"
REPORT_FILE = "report.html"
_SHOWN_ROUNDS = 10


class ChainSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Verification of a run's chain."""

    id: str
    blocks: int
    is_valid: bool
    failure: str | None
    signatures: int
    models_recomputed: int
    seconds: float


class TrainingSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A training run in a few numbers; `null` where a number has no meaning."""

    folder: str
    schedule: RunSummary
    final_accuracy: float
    best_accuracy: float
    best_round: int | None
    diverged_updates: int
    num_parameters: int
    epsilon: float | None  # most that any client has spent; none: training was not private
    report: str
    chain: ChainSummary


def write_run(run: Run) -> list[Path]:
    """Write tables, figures and the page into the run's folder; return the paths, the page last."""
    files = write_parquet(run.record, run.learning, run.folder)
    exhibits = draw_exhibits(run.record, run.learning, run.scenario)
    for exhibit in exhibits:
        files += save_picture(exhibit.picture, run.folder / FIGURES, exhibit.name)
    page = run.folder / REPORT_FILE
    return [*files, write_report(run.record, run.learning, run.scenario, page, exhibits, _verified(run))]


def _verified(run: Run) -> Verification:
    if run.verification is None:
        raise BadRunFolder(f"{run.folder}: its chain was not verified, a verified run expected")
    return run.verification


def summarise_training(run: Run) -> TrainingSummary:
    """Summarise a finished run for JSON."""
    learning, verification = run.learning, _verified(run)
    best = learning.best_round
    return TrainingSummary(
        folder=str(run.folder),
        schedule=summarise_run(run.record),
        final_accuracy=learning.final_accuracy,
        best_accuracy=float("nan") if best is None else float(learning.accuracy[best - 1]),
        best_round=best,
        diverged_updates=learning.count_outcomes("diverged"),
        num_parameters=learning.num_parameters,
        epsilon=float(np.nanmax(learning.final_epsilon)) if learning.is_private else None,
        report=str(run.folder / REPORT_FILE),
        chain=ChainSummary(
            id=verification.chain,
            blocks=verification.height,
            is_valid=verification.is_valid,
            failure=None if verification.failure is None else str(verification.failure),
            signatures=verification.num_signatures,
            models_recomputed=verification.count_models(ModelCheck.RECOMPUTED),
            seconds=run.verified_s,
        ),
    )


def tabulate_training(made: Run) -> list[Table]:
    """Tabulate a run for a terminal: some of its rounds, evenly spaced, and a summary."""
    run, learning, verification = made.record, made.learning, _verified(made)
    rounds = new_table(
        f"{run.scenario}: {run.scheduler}, seed {run.seed}",
        ("round", "clients", "delay s", "time s", "accuracy", "loss", "highest energy"),
        text_columns=0,
    )
    time_s = np.cumsum(run.delay_s)
    highest = np.max(run.share_of_budget(run.energy_j), axis=1)
    for place in np.unique(np.linspace(0, run.num_rounds - 1, _SHOWN_ROUNDS).round().astype(int)):
        rounds.add_row(
            str(run.round[place]),
            str(run.num_selected[place]),
            number(run.delay_s[place]),
            number(time_s[place], 2),
            number(100 * learning.accuracy[place], 1, " %"),
            number(learning.loss[place]),
            number(100 * highest[place], 0, " %"),
        )
    best = learning.best_round
    summary = new_table("In all", ("", ""), text_columns=2)
    summary.show_header = False
    summary.add_row("accuracy", f"{number(100 * learning.final_accuracy, 1, ' %')} at the end")
    if best is not None:
        summary.add_row("", f"{number(100 * learning.accuracy[best - 1], 1, ' %')} at best, in round {best}")
    summary.add_row("simulated time", number(run.total_delay_s, 2, " s"))
    summary.add_row("worst shortfall", f"{run.worst_shortfall:.3f} of a client's participation rate")
    spent = describe_privacy(learning, made.scenario)
    if spent:
        summary.add_row("privacy", spent)
    if run.num_infeasible:
        summary.add_row("infeasible", f"{run.num_infeasible} of {run.num_rounds} rounds: nobody trained in them")
    diverged = learning.count_outcomes("diverged")
    if diverged:
        summary.add_row("diverged", f"{diverged} local trainings were left out: the learning rate may be too high")
    recomputed = verification.count_models(ModelCheck.RECOMPUTED)
    if verification.failure is None:
        summary.add_row("chain", f"{verification.height} blocks, verified in {made.verified_s:.1f} s:")
        summary.add_row("", f"{verification.num_signatures} signatures, {recomputed} models aggregated again")
    else:
        summary.add_row("chain", f"NOT VALID: {verification.failure}")
    return [rounds, summary]
