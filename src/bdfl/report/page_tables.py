"""The tables of a report, as HTML."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element

import numpy as np

from bdfl.experiment.convergence import ConvergenceEstimate, LemmaConstants
from bdfl.experiment.measures import cumulative_delay, rounds_owed
from bdfl.learning.training import Outcome
from bdfl.records import LearningRecord, PerRound, RunRecord
from bdfl.report.findings import count
from bdfl.report.html import node, table_node
from bdfl.report.tables import number
from bdfl.scenario import Scenario
from bdfl.scenario.describing import describe_scenario

_MOST_CLIENTS = 100  # rows of the table of clients


def recall_table(learning: LearningRecord) -> Element:
    """Tabulate the recall of each class by the best model, its training samples and the clients that hold it."""
    best = learning.best_round
    caption = "Recall by class: never evaluated" if best is None else f"Recall by class, best model (round {best})"
    recall = np.full(len(learning.label_names), np.nan) if best is None else learning.recall[best - 1]
    held, holders = learning.label_counts.sum(axis=0), np.count_nonzero(learning.label_counts, axis=0)
    rows = [
        (name, f"{held[place]:,}", f"{holders[place]:,}", percent(recall[place]))
        for place, name in enumerate(learning.label_names)
    ]
    return table_node(caption, ("class", "training samples", "clients with it", "recall"), rows)


def rounds_table(run: RunRecord, learning: LearningRecord) -> Element:
    """Tabulate the untrained, the best and the last model."""
    time_s = cumulative_delay(run)
    chosen = [("best", learning.best_round), ("last", run.num_rounds)]
    start = ("untrained", "0", number(0.0, 1), percent(learning.initial_accuracy), number(learning.initial_loss))
    rows = [
        (
            name,
            str(round),
            number(float(time_s[round - 1]), 1),
            percent(learning.accuracy[round - 1]),
            number(float(learning.loss[round - 1])),
        )
        for name, round in chosen
        if round is not None
    ]
    return table_node("Models", ("model", "round", "simulated s", "accuracy", "test loss"), [start, *rows])


def clients_table(run: RunRecord, learning: LearningRecord) -> Element:
    """Tabulate each client's data, participation and energy; if there are many, only those owed most."""
    owed = rounds_owed(run)
    share = run.share_of_budget(run.energy_j)
    mean_share = share[run.took_place].mean(axis=0) if run.took_place.any() else np.full(run.num_clients, np.nan)
    diverged = np.count_nonzero(learning.outcome == Outcome.DIVERGED, axis=0)
    caption = "All clients"
    shown: Sequence[int] = range(run.num_clients)
    if run.num_clients > _MOST_CLIENTS:
        shown = np.argsort(-owed, kind="stable")[:_MOST_CLIENTS].tolist()
        caption = (
            f"The {_MOST_CLIENTS} clients that are owed most, of {run.num_clients:,}; clients.parquet has them all"
        )
    rows = [
        (
            str(client),
            f"{int(learning.samples[client]):,}",
            str(int(np.count_nonzero(learning.label_counts[client]))),
            percent(run.participation_rate[client]),
            percent(run.participation[client]),
            f"{max(float(owed[client]), 0.0):.1f}",
            percent(mean_share[client]),
            percent(share[:, client].max()),
            number(_mean_known(learning.local_loss[:, client])),
            str(int(diverged[client])),
        )
        for client in shown
    ]
    columns = (
        "client", "samples", "classes", "rate beta", "took part", "rounds owed", "energy, mean", "energy, highest",
        "local loss, mean", "diverged",
    )  # fmt: skip
    return table_node(caption, columns, rows)


def scenario_table(scenario: Scenario) -> Element:
    """Tabulate the values that are not defaults."""
    rows = [
        (row.key, row.value_text, row.unit, row.default_text, row.meaning)
        for row in describe_scenario(scenario)
        if not row.is_default and row.key not in ("name", "description")
    ]
    if not rows:
        return node("p", "Every value is a default.")
    return table_node(
        "What differs from the defaults; scenario.toml has everything",
        ("key", "value", "unit", "default", "meaning"),
        rows,
        words=range(5),
    )


def terms_table(found: ConvergenceEstimate) -> Element:
    """Tabulate Lemma 1's bound after all rounds, term by term."""
    last, owed = found.achieved[-1], found.owed[-1]
    return table_node(
        f"The bound after {count(len(found.measured), 'round')}, term by term",
        ("term", "at achieved rates", "at beta", "what it is"),
        [
            (name, f"{achieved:.3g}", f"{at_beta:.3g}", meaning)
            for name, achieved, at_beta, meaning in (
                ("initial loss", last.initial_loss, owed.initial_loss, "the way still to go; falls as 1/T"),
                ("mixed drift", last.mixed_drift, owed.mixed_drift, "local drift times absence"),
                ("local drift", last.local_drift, owed.local_drift, "local steps off the common path"),
                ("absence", last.absence, owed.absence, "gradients that were not heard"),
                ("sum", last.total, owed.total, "the bound"),
            )
        ],
        words=(0, 3),
    )


def constants_table(constants: LemmaConstants) -> Element:
    """Tabulate the constants of Lemma 1 and the source of each."""
    steps = f"{constants.fewest_steps}"
    if constants.most_steps > constants.fewest_steps:
        steps += f" to {constants.most_steps}"
    return table_node(
        "Constants, from this run",
        ("constant", "value", "where from"),
        [
            ("L", f"{constants.smoothness:.3g}", "largest change of the full gradient per distance between two models"),
            ("G", f"{constants.gradient_norm:.3g}", "largest gradient norm seen"),
            ("F(w1) - F*", f"{constants.initial_gap:.3g}", "loss of the untrained model on all training data; F* >= 0"),
            ("eta", f"{constants.learning_rate:g}", "learning rate"),
            ("H", steps, "local steps of a round"),
            ("eta L H", f"{constants.step:.3g}", "the drift terms are small only if this is"),
        ],
        words=(0, 2),
    )


def _mean_known(values: PerRound) -> float:
    known = values[np.isfinite(values)]
    return float(np.mean(known)) if known.size else float("nan")


def percent(share: float) -> str:
    """Format a share in percent; `-` if unknown."""
    return number(100.0 * float(share), 1, " %")
