"""A training run in sentences and tables: findings, warnings, the verification of its chain, a summary."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element

import msgspec
import numpy as np
from rich.table import Table

from bdfl.experiment.run_folder import BadRunFolder
from bdfl.experiment.statistics import is_below_rate, is_overdrawn, rounds_owed
from bdfl.experiment.training_run import Run
from bdfl.learning.training import Outcome
from bdfl.ledger.verify import Agreement, ModelCheck, Verification
from bdfl.records import LearningRecord, RunRecord, RunSummary, summarise_run
from bdfl.report.html import node, table_node
from bdfl.report.tables import new_table, number
from bdfl.scenario import Scenario

REPORT_FILE = "report.html"
_SHOWN_ROUNDS = 10

# Findings of a run in sentences: a summary line for its report, and warnings.

_SHOWN_NUMBERS = 12  # of rounds or clients in a sentence


def summarise_findings(run: RunRecord, learning: LearningRecord, scenario: Scenario) -> str:
    """Summarise accuracy, time, energy and fairness of the run in one line."""
    rounds = count(run.num_rounds, "round")
    if run.num_rounds < scenario.rounds:
        rounds = f"{run.num_rounds} of {scenario.rounds} rounds"
    reached = (
        f"{100 * learning.final_accuracy:.1f} % test accuracy"
        if np.isfinite(learning.final_accuracy)
        else "Test accuracy unknown"
    )
    overdrawn = int(np.count_nonzero(is_overdrawn(run)))
    energy = count(overdrawn, "energy budget") if overdrawn else "no energy budget"
    time = f"{run.total_delay_s:.1f} simulated seconds"
    return f"{reached} after {rounds}, {time}; {energy} overdrawn; {_fairness(run)}."


def _fairness(run: RunRecord) -> str:
    below = int(np.count_nonzero(is_below_rate(run)))
    if below:
        return f"{below} of {count(run.num_clients, 'client')} below {'its' if below == 1 else 'their'} rate"
    if np.any(rounds_owed(run) > 1e-9):
        return "every client within one round of its rate"
    return "every client at its rate or above"


def list_warnings(run: RunRecord, learning: LearningRecord, scenario: Scenario) -> list[str]:
    """List warnings, one sentence each, the most severe first; empty if there are none."""
    found = [
        _unfinished(run, scenario),
        _infeasible(run),
        _diverged(learning),
        _unlearned(learning),
        _overdrawn(run),
        _below_rate(run),
        _without_data(learning),
    ]
    return [sentence for sentence in found if sentence]


def _unfinished(run: RunRecord, scenario: Scenario) -> str:
    if run.num_rounds >= scenario.rounds:
        return ""
    return f"The run is not over: {run.num_rounds} of {scenario.rounds} rounds are here."


def _infeasible(run: RunRecord) -> str:
    if not run.num_infeasible:
        return ""
    missed = run.round[~run.took_place].tolist()
    were, them = ("was", "it: round") if len(missed) == 1 else ("were", "them: rounds")
    return (
        f"{run.num_infeasible} of {count(run.num_rounds, 'round')} {were} infeasible, nobody trained in {them}"
        f" {_list(missed)}. The first: {run.reason[missed[0] - 1]}."
    )


def _diverged(learning: LearningRecord) -> str:
    failed = learning.outcome == Outcome.DIVERGED
    if not failed.any():
        return ""
    updates, clients = int(np.count_nonzero(failed)), np.flatnonzero(failed.any(axis=0)).tolist()
    whose = "client" if len(clients) == 1 else "clients"
    return (
        f"{count(updates, 'update')} diverged and {'was' if updates == 1 else 'were'} left out, of"
        f" {whose} {_list(clients)}: the learning rate may be too high."
    )


def _unlearned(learning: LearningRecord) -> str:
    if learning.best_round is None:
        return "No evaluation of the model gave finite numbers: whether it learned anything is not known."
    if not learning.final_accuracy > learning.initial_accuracy:
        return (
            f"The model did not learn: it ends at {100 * learning.final_accuracy:.1f} %, untrained it had"
            f" {100 * learning.initial_accuracy:.1f} %."
        )
    return ""


def _overdrawn(run: RunRecord) -> str:
    overdrawn = is_overdrawn(run)
    if not overdrawn.any():
        return ""
    highest = float(np.max(run.share_of_budget(run.energy_j)))
    return (
        f"Clients {_list(np.flatnonzero(overdrawn).tolist())} spent more than their energy budget in some"
        f" round, up to {100 * highest:.0f} % of it: mining took longer than planned."
    )


def _below_rate(run: RunRecord) -> str:
    below = np.flatnonzero(is_below_rate(run))
    if not below.size:
        return ""
    owed = rounds_owed(run)
    worst = int(np.argmax(owed))
    return (
        f"{len(below)} of {count(run.num_clients, 'client')} took part less often than the rate beta asks; client"
        f" {worst} is owed most, {owed[worst]:.1f} rounds."
    )


def _without_data(learning: LearningRecord) -> str:
    empty = np.flatnonzero(learning.samples == 0).tolist()
    return f"{count(len(empty), 'client')} without data: {_list(empty)}." if empty else ""


def describe_privacy(learning: LearningRecord, scenario: Scenario) -> str:
    """Describe the epsilon spent by a run in a line; empty if training was not private."""
    if not learning.is_private:
        return ""
    spent = learning.final_epsilon
    worst = int(np.nanargmax(spent))
    return f"epsilon at most {spent[worst]:.2f} (client {worst}), delta {scenario.privacy.delta:g}"


def _list(numbers: Sequence[int]) -> str:
    shown = ", ".join(str(value) for value in numbers[:_SHOWN_NUMBERS])
    return shown if len(numbers) <= _SHOWN_NUMBERS else f"{shown} and {len(numbers) - _SHOWN_NUMBERS} more"


def count(number: int, noun: str) -> str:
    """Format a number with its noun, as in `1 round` or `1,000 clients`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


# Verification of a run's chain, for its page and the terminal.


def describe_verification(verification: Verification) -> str:
    """Describe the verification of a chain in a sentence."""
    if verification.failure is not None:
        return f"The chain is not valid. {verification.failure}."
    recomputed = verification.count_models(ModelCheck.RECOMPUTED)
    pruned = verification.count_models(ModelCheck.PRUNED) + verification.count_models(ModelCheck.TRUSTED)
    models = f"{count(recomputed, 'global model')} aggregated again from the members' updates, equal in every bit"
    gone = f", {pruned} taken on the word of a quorum because their updates were pruned" if pruned else ""
    blocks, signatures = count(verification.height, "block"), count(verification.num_signatures, "signature")
    return (
        f"After the run {blocks} and {signatures} were checked from the genesis on: links, proofs of work, votes,"
        f" queues, receipts and schedules; {models}{gone}."
    )


def chain_section(verification: Verification) -> list[Element]:
    """Return the page's section about the chain."""
    rows = [
        ("Chain", verification.chain),
        ("Blocks", f"{verification.height:,}"),
        ("Signatures checked", f"{verification.num_signatures:,}"),
        ("Models aggregated again", f"{verification.count_models(ModelCheck.RECOMPUTED):,}"),
        ("Blocks that left the model as it was", f"{verification.count_models(ModelCheck.UNCHANGED):,}"),
        ("Models whose updates were pruned", f"{verification.count_models(ModelCheck.PRUNED):,}"),
        ("Schedules that come out the same here", f"{verification.count_schedules(Agreement.SAME):,}"),
        ("Schedules within the voters' tolerance", f"{verification.count_schedules(Agreement.WITHIN_TOLERANCE):,}"),
        ("Other schedules, valid all the same", f"{verification.count_schedules(Agreement.DIFFERENT):,}"),
    ]
    again = "Anybody can do it again with the run's folder alone: bdfl chain verify FOLDER."
    return [
        node("p", f"{describe_verification(verification)} {again}"),
        node("div.panel", table_node("Verification", ("", ""), rows, words=(0,))),
    ]


# A finished run in a few numbers, for JSON and the terminal.


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


def verified(run: Run) -> Verification:
    """Return the verification of a run's chain; raise `BadRunFolder` if there is none."""
    if run.verification is None:
        raise BadRunFolder(f"{run.folder}: its chain was not verified, a verified run expected")
    return run.verification


def summarise_training(run: Run) -> TrainingSummary:
    """Summarise a finished run for JSON."""
    learning, verification = run.learning, verified(run)
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
    run, learning, verification = made.record, made.learning, verified(made)
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
