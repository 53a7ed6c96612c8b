"""report.html: a whole run as one self-contained page."""

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from xml.etree.ElementTree import Element

import numpy as np

from bdfl import __version__
from bdfl.experiment.convergence import CannotSay, ConvergenceEstimate, estimate_convergence
from bdfl.experiment.measures import is_below_rate, is_overdrawn, rounds_owed
from bdfl.learning.training import Outcome
from bdfl.ledger.verify import Verification
from bdfl.records import LearningRecord, RunRecord
from bdfl.report.chain_section import chain_section
from bdfl.report.exhibit import Exhibit
from bdfl.report.findings import count, list_warnings, summarise_findings
from bdfl.report.html import node
from bdfl.report.inline_svg import extract_styles, inline_svg
from bdfl.report.learning_figures import draw_exhibits
from bdfl.report.page_frame import COLOURS, card, render_page
from bdfl.report.page_tables import (
    clients_table,
    constants_table,
    percent,
    recall_table,
    rounds_table,
    scenario_table,
    terms_table,
)
from bdfl.report.privacy_tables import privacy_table
from bdfl.report.tables import number
from bdfl.scenario import Scenario


def write_report(
    run: RunRecord,
    learning: LearningRecord,
    scenario: Scenario,
    path: Path,
    exhibits: Sequence[Exhibit] | None = None,
    verification: Verification | None = None,
) -> Path:
    """Write one HTML file and return its path; the same records give the same bytes.

    `exhibits` are the run's figures, if already drawn by `draw_exhibits`.
    """
    drawn = draw_exhibits(run, learning, scenario) if exhibits is None else exhibits
    text = render_report(run, learning, scenario, drawn, verification)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
    return path


def render_report(
    run: RunRecord,
    learning: LearningRecord,
    scenario: Scenario,
    exhibits: Sequence[Exhibit],
    verification: Verification | None = None,
) -> str:
    """Return the report as HTML: no script, no font, no external link, and a content security policy against them.

    `verification` is the result of verifying the run's chain.
    """
    chain = [] if verification is None else [node("h2", "Chain"), *chain_section(verification)]
    figures = {exhibit.name: _figure(exhibit, f"f{place}") for place, exhibit in enumerate(exhibits)}
    main = node(
        "main",
        _opening(run, learning, scenario),
        node("h2", "Learning"),
        _pair(figures["learning-rounds"], figures["learning-seconds"]),
        _pair(figures["recall"], node("div.panel", recall_table(learning), rounds_table(run, learning))),
        *_privacy(learning, scenario, figures.get("privacy")),
        node("h2", "Time and energy"),
        _pair(figures["delay"], figures["energy"]),
        node("h2", "Fairness"),
        _pair(figures["backlog"], figures["stability"], figures["participation"], figures["schedule"]),
        node("h2", "Lemma 1: convergence"),
        *_lemma(estimate_convergence(run, learning, scenario), figures.get("convergence")),
        node("h2", "Clients"),
        node("div.panel", clients_table(run, learning)),
        *chain,
        node("h2", "Scenario"),
        node("div.panel", scenario_table(scenario)),
    )
    body = node("body", main, _colophon(run, learning))
    styles = extract_styles(body, {light: f"var(--{name})" for name, (light, _) in COLOURS.items()})
    return render_page(f"{scenario.name}: report of a run", body, styles)


def _opening(run: RunRecord, learning: LearningRecord, scenario: Scenario) -> Element:
    warnings = list_warnings(run, learning, scenario)
    about = [node("p.about", scenario.description)] if scenario.description else []
    notes = [node("ul.notes", *(node("li", warning) for warning in warnings))] if warnings else []
    return node(
        "header",
        node("h1", scenario.name),
        *about,
        node("p.lead", summarise_findings(run, learning, scenario)),
        *notes,
        node("dl.cards", *_cards(run, learning)),
    )


def _cards(run: RunRecord, learning: LearningRecord) -> list[Element]:
    highest = float(np.max(run.share_of_budget(run.energy_j)))
    below, worst = int(np.count_nonzero(is_below_rate(run))), max(float(np.max(rounds_owed(run))), 0.0)
    best = learning.best_round
    best_text = "never evaluated" if best is None else f"best {percent(learning.accuracy[best - 1])} in round {best}"
    diverged = learning.count_outcomes(Outcome.DIVERGED)
    happened = bool(run.took_place.any())
    trained = float(np.mean(run.num_selected[run.took_place])) if happened else 0.0
    return [
        card("Test accuracy", percent(learning.final_accuracy), best_text, is_bad=best is None),
        card(
            "Simulated time",
            number(run.total_delay_s, 1, " s"),
            f"{number(run.mean_delay_s, 3, ' s')} a round" if happened else "no round took place",
        ),
        card(
            "Rounds",
            f"{run.num_rounds:,}",
            f"{run.num_infeasible} infeasible" if run.num_infeasible else "all took place",
            is_bad=run.num_infeasible > 0,
        ),
        card("Clients", f"{run.num_clients:,}", f"{number(trained, 1)} train in a round"),
        card(
            "Highest energy",
            percent(highest),
            f"of a budget; {percent(run.mean_energy_use)} in the mean" if happened else "no round took place",
            is_bad=bool(is_overdrawn(run).any()),
        ),
        card(
            "Below their rate",
            f"{below:,}",
            f"clients; the worst is owed {worst:.1f} rounds" if worst > 1e-9 else "clients; nobody is owed a round",
            is_bad=below > 0,
        ),
        card(
            "Diverged updates",
            f"{diverged:,}",
            f"of {count(int(np.count_nonzero(run.selected)), 'local training')}",
            is_bad=diverged > 0,
        ),
        card("Model", f"{learning.num_parameters:,}", "parameters"),
    ]


def _figure(exhibit: Exhibit, prefix: str) -> Element:
    return node(
        "figure",
        node("h3", exhibit.heading),
        inline_svg(exhibit.picture.svg, prefix, exhibit.description),
        node("figcaption", exhibit.caption),
    )


def _pair(*members: Element) -> Element:
    return node("div.pair", *members)


def _privacy(learning: LearningRecord, scenario: Scenario, figure: Element | None) -> list[Element]:
    """Return the section about privacy; empty for a run without private training."""
    if figure is None:
        return []
    return [node("h2", "Privacy"), _pair(figure, node("div.panel", privacy_table(learning, scenario)))]


def _lemma(found: ConvergenceEstimate | CannotSay, figure: Element | None) -> list[Element]:
    if isinstance(found, CannotSay) or figure is None:
        reason = found.reason if isinstance(found, CannotSay) else "its figure was not drawn"
        return [node("p", f"The run does not say how it compares with the paper's Lemma 1: {reason}.")]
    return [
        _pair(figure, node("div.panel", terms_table(found), constants_table(found.constants))),
        node(
            "div.panel",
            node(
                "p",
                "L and G are the largest values that this run happened to see. The true constants are no smaller, so"
                " this is an estimate of the bound and not a proof.",
            ),
            *_unmet(found.unmet),
        ),
    ]


def _unmet(sentences: Sequence[str]) -> list[Element]:
    if not sentences:
        return []
    return [
        node("p", "What the lemma presumes and this run does not do:"),
        node("ul.plain", *(node("li", sentence) for sentence in sentences)),
    ]


def _colophon(run: RunRecord, learning: LearningRecord) -> Element:
    facts = {
        "Scheduler": f"{run.scheduler}, V = {run.tradeoff:g}",
        "Seed": str(run.seed),
        "Scenario digest": run.scenario_digest,
        "Training samples": f"{int(np.sum(learning.samples)):,}",
        "Written with": ", ".join(
            [f"bdfl {__version__}", *(_version(name) for name in ("numpy", "matplotlib", "torch"))]
        ),
    }
    pairs = [element for term, fact in facts.items() for element in (node("dt", term), node("dd", fact))]
    return node("footer", node("dl", *pairs))


def _version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"no {package}"
