"""Privacy spent, as tables for the terminal and for the page."""

from xml.etree.ElementTree import Element

import numpy as np
from rich.table import Table
from rich.text import Text

from bdfl.audit.summary import Judgement, PrivacyAudit
from bdfl.records import LearningRecord
from bdfl.report.html import table_node
from bdfl.report.tables import new_table, number
from bdfl.scenario import Scenario

_MOST_CLIENTS = 200
_SHOWN_MEMBERS = 50


def tabulate_privacy(audit: PrivacyAudit) -> Table:
    """Tabulate every member's epsilon, as stated and as recomputed by the accountant."""
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
    """Describe the epsilon spent by a run in a line; empty if training was not private."""
    if not learning.is_private:
        return ""
    spent = learning.final_epsilon
    worst = int(np.nanargmax(spent))
    return f"epsilon at most {spent[worst]:.2f} (client {worst}), delta {scenario.privacy.delta:g}"


def privacy_table(learning: LearningRecord, scenario: Scenario) -> Element:
    """Tabulate the epsilon spent by each client; if there are many, only the highest."""
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
