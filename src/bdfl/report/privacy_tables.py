"""What private training spent, for people: on a terminal, as a table of the page and as a figure."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element

import numpy as np
from matplotlib.ticker import PercentFormatter
from rich.table import Table
from rich.text import Text

from bdfl.audit.privacy import Judgement, PrivacyAudit
from bdfl.records import LearningRecord, PerRound, RunRecord
from bdfl.report.exhibit import FEW_POINTS, WIDTH, Exhibit
from bdfl.report.html import table_node
from bdfl.report.panels import fit_rounds
from bdfl.report.style import TRAINING, UPLOAD, Cell, Picture, Sheet, house_style, new_figure
from bdfl.report.tables import new_table, number
from bdfl.scenario import Scenario

_MOST_CLIENTS = 200
_SHOWN_MEMBERS = 50


def tabulate_privacy(audit: PrivacyAudit) -> Table:
    """Every member's epsilon as it stated it and as the accountant has it."""
    table = new_table(
        f"Privacy after {audit.height} blocks",
        ("member", "samples", "rate", "rounds", "steps", "stated", audit.accountant, "spent", ""),
    )
    table.columns[-1].justify = "left"
    for one in audit.members[:_SHOWN_MEMBERS]:
        is_wrong = one.judgement in (Judgement.TOO_LOW, Judgement.TOO_HIGH)
        verdict = f"{one.judgement.value} in block {one.block}" if is_wrong else one.judgement.value
        table.add_row(
            str(one.client),
            f"{one.samples:,}",
            f"{one.rate:.3g}",
            str(one.rounds),
            f"{one.steps:,}",
            number(one.stated, 3),
            number(one.recomputed, 3),
            number(one.spent, 3),
            Text(verdict, style="red" if is_wrong else ""),
        )
    more = len(audit.members) - _SHOWN_MEMBERS
    facts = f"noise {audit.noise_multiplier:g}, clipped to {audit.max_grad_norm:g}, delta {audit.delta:g}"
    table.caption = facts + (f"; {more} more members: --json" if more > 0 else "")
    return table


def describe_privacy(learning: LearningRecord, scenario: Scenario) -> str:
    """What a run spent, in a line; empty where it was not private."""
    if not learning.is_private:
        return ""
    spent = learning.final_epsilon
    worst = int(np.nanargmax(spent))
    return f"epsilon at most {spent[worst]:.2f} (client {worst}), delta {scenario.privacy.delta:g}"


def privacy_table(learning: LearningRecord, scenario: Scenario) -> Element:
    """What each client spent; of very many, those that spent most."""
    spent = learning.final_epsilon
    order = np.argsort(-np.nan_to_num(spent), kind="stable")[:_MOST_CLIENTS]
    rows = [
        (
            str(client),
            f"{int(learning.samples[client]):,}",
            str(int(np.count_nonzero(np.isfinite(learning.epsilon[:, client])))),
            number(float(spent[client]), 3),
        )
        for client in sorted(order.tolist())
    ]
    caption = f"Epsilon each client has spent, at delta {scenario.privacy.delta:g}, as its updates state on the chain"
    return table_node(caption, ("client", "samples", "updates", "epsilon"), rows)


def show_privacy(run: RunRecord, learning: LearningRecord, scenario: Scenario) -> Exhibit:
    """Epsilon over the rounds, and the accuracy that it bought."""
    most, middle = _spent_so_far(learning)
    with house_style():
        figure = new_figure(WIDTH, 4.5)
        upper, lower = figure.subplots(2, 1)
        for values, colour, name in ((most, UPLOAD, "most of any client"), (middle, TRAINING, "median client")):
            upper.plot(run.round, values, color=colour, marker="." if len(values) <= FEW_POINTS else "", label=name)
        fit_rounds(upper, run)
        upper.set(title="Epsilon spent", xlabel="round")
        upper.set_ylim(bottom=0)
        upper.legend(loc="upper left", handlelength=1.4)
        known = np.isfinite(learning.accuracy)
        marker = "." if np.count_nonzero(known) <= FEW_POINTS else ""
        lower.plot(most[known], learning.accuracy[known], color=TRAINING, marker=marker)
        lower.set(title="Test accuracy by epsilon", xlabel="epsilon, most of any client")
        lower.set_xlim(left=0)
        lower.set_ylim(0, 1.04)
        lower.yaxis.set_major_formatter(PercentFormatter(1.0))
    rows: list[Sequence[Cell]] = [
        (int(round), float(most[place]), float(middle[place]), float(learning.accuracy[place]))
        for place, round in enumerate(run.round)
    ]
    last = float(most[-1])
    return Exhibit(
        "privacy",
        "What training told of the data",
        f"Epsilon bounds how much more likely any update becomes by a single one of a client's samples (by e to its"
        f" power, but for a chance of delta = {scenario.privacy.delta:g}); it adds up over all rounds in which a client"
        " was to train. Below, the accuracy that was reached for it. The noise of a simulation follows from its seed,"
        " so it hides nothing from those who know that.",
        f"Line charts of epsilon over {run.num_rounds} rounds, at the end {last:.2f} for the client that spent most,"
        " and of test accuracy by epsilon.",
        Picture(figure, [Sheet(("round", "epsilon_most", "epsilon_median", "accuracy"), rows)]),
    )


def _spent_so_far(learning: LearningRecord) -> tuple[PerRound, PerRound]:
    """Largest and median epsilon of the clients with data after every round; 0 for one that never trained."""
    spent = np.maximum.accumulate(np.nan_to_num(learning.epsilon), axis=0)[:, learning.samples > 0]
    return spent.max(axis=1), np.median(spent, axis=1)
