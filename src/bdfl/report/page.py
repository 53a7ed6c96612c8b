"""The page report.html, and its tables."""

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from xml.etree.ElementTree import Element

import numpy as np

from bdfl import __version__
from bdfl.experiment.bounds import CannotSay, ConvergenceEstimate, LemmaConstants, estimate_convergence
from bdfl.experiment.statistics import cumulative_delay, is_below_rate, is_overdrawn, rounds_owed
from bdfl.experiment.training_run import Run
from bdfl.learning.training import Outcome
from bdfl.ledger.verify import Verification
from bdfl.records import LearningRecord, RunRecord
from bdfl.records.parquet import write_parquet
from bdfl.records.run import mean_or_nan
from bdfl.report.html import card, facts_node, inline_svg, node, render_page, table_node
from bdfl.report.learning_figures import draw_exhibits
from bdfl.report.run_figures import Exhibit
from bdfl.report.run_report import REPORT_FILE, chain_section, count, list_warnings, summarise_findings, verified
from bdfl.report.style import save_picture
from bdfl.report.tables import number
from bdfl.scenario import Scenario
from bdfl.scenario.files import describe_scenario

# The tables of a report, as HTML.

_MOST_CLIENTS = 100  # rows of the table of clients
_MOST_EPSILONS = 200


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


def privacy_table(learning: LearningRecord, scenario: Scenario) -> Element:
    """Tabulate the epsilon spent by each client; if there are many, only the highest."""
    spent = learning.final_epsilon
    order = np.argsort(-np.nan_to_num(spent), kind="stable")[:_MOST_EPSILONS]
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
    losses = [mean_or_nan(one[np.isfinite(one)]) for one in learning.local_loss.T]
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
            number(losses[client]),
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
    """Tabulate the bounds of Lemmas 1 and 2 after all rounds, term by term."""
    last, owed, weighted = found.achieved[-1], found.owed[-1], found.weighted[-1]
    return table_node(
        f"The bounds after {count(len(found.measured), 'round')}, term by term",
        ("term", "Lemma 1, at achieved rates", "Lemma 1, at beta", "Lemma 2", "what it is"),
        [
            (name.replace("_", " "), *(f"{getattr(bound, name):.3g}" for bound in (last, owed, weighted)), meaning)
            for name, meaning in (
                ("initial_loss", "the way still to go; falls as 1/T"),
                ("mixed_drift", "local drift times absence"),
                ("local_drift", "local steps off the common path"),
                ("absence", "gradients heard less than they count"),
                ("total", "the bound"),
            )
        ],
        words=(0, 4),
    )


def constants_table(constants: LemmaConstants) -> Element:
    """Tabulate the constants of the lemmas and the source of each."""
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


def percent(share: float) -> str:
    """Format a share in percent; `-` if unknown."""
    return number(100.0 * float(share), 1, " %")


# report.html: a whole run as one self-contained page.

FIGURES = "figures"


def write_run(run: Run) -> list[Path]:
    """Write tables, figures and the page into the run's folder; return the paths, the page last."""
    files = write_parquet(run.record, run.learning, run.folder)
    exhibits = draw_exhibits(run.record, run.learning, run.scenario)
    for exhibit in exhibits:
        files += save_picture(exhibit.picture, run.folder / FIGURES, exhibit.name)
    page = run.folder / REPORT_FILE
    return [*files, write_report(run.record, run.learning, run.scenario, page, exhibits, verified(run))]


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
    privacy = []
    if "privacy" in figures:
        spent = node("div.panel", privacy_table(learning, scenario))
        privacy = [node("h2", "Privacy"), _pair(figures["privacy"], spent)]
    main = node(
        "main",
        _opening(run, learning, scenario),
        node("h2", "Learning"),
        _pair(figures["learning-rounds"], figures["learning-seconds"]),
        _pair(figures["recall"], node("div.panel", recall_table(learning), rounds_table(run, learning))),
        *privacy,
        node("h2", "Time and energy"),
        _pair(figures["delay"], figures["energy"]),
        node("h2", "Fairness"),
        _pair(figures["backlog"], figures["stability"], figures["participation"], figures["schedule"]),
        node("h2", "Lemmas 1 and 2: convergence"),
        *_lemma(estimate_convergence(run, learning, scenario), figures.get("convergence")),
        node("h2", "Clients"),
        node("div.panel", clients_table(run, learning)),
        *chain,
        node("h2", "Scenario"),
        node("div.panel", scenario_table(scenario)),
    )
    packages = [f"bdfl {__version__}", *(_version(name) for name in ("numpy", "matplotlib", "torch"))]
    facts = {
        "Scheduler": f"{run.scheduler}, V = {run.tradeoff:g}",
        "Seed": str(run.seed),
        "Scenario digest": run.scenario_digest,
        "Training samples": f"{int(np.sum(learning.samples)):,}",
        "Written with": ", ".join(packages),
    }
    body = node("body", main, node("footer", facts_node("dl", facts.items())))
    return render_page(f"{scenario.name}: report of a run", body)


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


def _lemma(found: ConvergenceEstimate | CannotSay, figure: Element | None) -> list[Element]:
    if isinstance(found, CannotSay) or figure is None:
        reason = found.reason if isinstance(found, CannotSay) else "its figure was not drawn"
        return [node("p", f"The run does not say how it compares with Lemmas 1 and 2: {reason}.")]
    unmet = []
    if found.unmet:
        sentences = node("ul.plain", *(node("li", sentence) for sentence in found.unmet))
        unmet = [node("p", "What the lemmas presume and this run does not do:"), sentences]
    return [
        _pair(figure, node("div.panel", terms_table(found), constants_table(found.constants))),
        node(
            "div.panel",
            node(
                "p",
                "L and G are the largest values that this run happened to see. The true constants are no smaller, so"
                " each bound is an estimate and not a proof.",
            ),
            *unmet,
        ),
    ]


def _version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"no {package}"
