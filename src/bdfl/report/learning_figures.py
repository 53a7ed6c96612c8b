"""Figures of learning: accuracy, loss, and the bounds of Lemmas 1 and 2."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.ticker import LogLocator, MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from bdfl.experiment.bounds import CannotSay, ConvergenceEstimate, estimate_convergence
from bdfl.experiment.statistics import cumulative_delay
from bdfl.learning.training import Outcome
from bdfl.records import LearningRecord, PerRound, RunRecord
from bdfl.report.cost_figures import (
    show_backlog,
    show_delay,
    show_energy,
    show_participation,
    show_schedule,
    show_stability,
)
from bdfl.report.run_figures import FEW_POINTS, WIDTH, Exhibit, draw_cells, fit_rounds, say
from bdfl.report.style import (
    AXIS,
    BOUND,
    DASHES,
    INFEASIBLE,
    MINING,
    TRAINING,
    UPLOAD,
    Column,
    Picture,
    Sheet,
    drawable,
    drawing,
    label_ends,
)
from bdfl.scenario import Scenario

# Figure of Lemmas 1 and 2: their bounds beside the measured gradient norm.


def show_convergence(estimate: ConvergenceEstimate) -> Exhibit:
    """Draw the bounds of Lemma 1, at the rates owed and achieved, and Lemma 2 beside the measured gradient norm."""
    constants, num_rounds = estimate.constants, len(estimate.measured)
    rounds = np.arange(1, num_rounds + 1)
    kinds = {"owed": estimate.owed, "achieved": estimate.achieved, "weighted": estimate.weighted}
    owed, achieved, weighted = (np.array([bound.total for bound in bounds]) for bounds in kinds.values())
    way = np.array([bound.initial_loss for bound in estimate.weighted])
    marker = "." if num_rounds <= FEW_POINTS else ""
    with drawing(WIDTH, 3.6) as figure:
        axes = figure.subplots()
        axes.set_yscale("log")
        curves = (owed, achieved, weighted, way, estimate.measured, estimate.squared_gradient, [constants.known_anyway])
        values = np.concatenate(curves)
        values = values[np.isfinite(values) & (values > 0)]
        if values.size:
            axes.set_ylim(values.min() / 2.0, values.max() * 2.0)
        axes.set_xlim(0.5, num_rounds + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        axes.plot(rounds, estimate.squared_gradient, ".", color=AXIS, markersize=3.5)
        axes.plot(rounds, estimate.measured, color=TRAINING, marker=marker)
        axes.plot(rounds, achieved, color=INFEASIBLE, marker=marker)
        axes.plot(rounds, owed, color=INFEASIBLE, linewidth=1.0, linestyle=DASHES)
        axes.plot(rounds, weighted, color=UPLOAD, marker=marker)
        axes.plot(rounds, way, color=MINING, linewidth=1.0, marker=marker)
        axes.axhline(constants.known_anyway, color=BOUND, linewidth=1.0, linestyle=DASHES)
        ends = [
            (num_rounds, float(estimate.measured[-1]), "measured mean", TRAINING),
            (num_rounds, float(achieved[-1]), "Lemma 1, achieved", INFEASIBLE),
            (num_rounds, float(owed[-1]), "Lemma 1, beta", INFEASIBLE),
            (num_rounds, float(weighted[-1]), "Lemma 2", UPLOAD),
            (num_rounds, float(way[-1]), "1/T term", MINING),
            (num_rounds, constants.known_anyway, "G²", BOUND),
        ]
        label_ends(axes, [end for end in ends if end[1] > 0], gap=0.065)
        axes.set(title="Squared gradient norm of the global loss", xlabel="rounds T", ylabel="mean over T rounds")
    columns: dict[str, Column] = {
        "rounds": rounds,
        "squared_gradient_norm": estimate.squared_gradient,
        "measured_mean": estimate.measured,
        **{
            f"{kind}_{term}": [getattr(bound, term) for bound in bounds]
            for kind, bounds in kinds.items()
            for term in ("initial_loss", "mixed_drift", "local_drift", "absence", "total")
        },
    }
    ends_at = "; ".join(
        f"{name} ends {estimate.looseness(bounds):.3g} times above what was measured, "
        + ("below G²" if estimate.is_telling(bounds) else "above G², which no gradient exceeds anyway")
        for name, bounds in (("Lemma 1", estimate.achieved), ("Lemma 2", estimate.weighted))
    )
    return Exhibit(
        "convergence",
        "The bounds and what happened",
        "Two bounds on the mean squared gradient norm over the first T rounds (dots: of single rounds): Lemma 1, the"
        " paper's, for means over all data, and Lemma 2 for means over the data of those who trained. One term falls as"
        f" 1/T; the others stay, however long the run: {estimate.achieved[-1].neighbourhood:.3g} and"
        f" {estimate.weighted[-1].neighbourhood:.3g}. Here {ends_at}.",
        f"Line chart on a logarithmic axis: after {num_rounds} rounds the measured mean is"
        f" {float(estimate.measured[-1]):.3g}, Lemma 1 {float(achieved[-1]):.3g} at the achieved participation and"
        f" {float(owed[-1]):.3g} at beta, Lemma 2 {float(weighted[-1]):.3g}.",
        Picture(figure, [Sheet.of_columns(columns)]),
    )


# Learning results of a run as captioned figures, readable on a phone.

_MOST_NAMES = 30  # labels that are named
_LOCAL = "#e69f00"


def draw_exhibits(run: RunRecord, learning: LearningRecord, scenario: Scenario) -> list[Exhibit]:
    """Draw all figures of a training run, in the order of a report; the lemmas only if their constants are known."""
    exhibits = [
        show_learning_over_rounds(run, learning),
        show_learning_over_time(run, learning),
        show_recall(run, learning),
        show_delay(run),
        show_energy(run),
        show_backlog(run),
        show_stability(run),
        show_participation(run),
        show_schedule(run),
    ]
    if learning.is_private:
        exhibits.append(show_privacy(run, learning, scenario))
    estimate = estimate_convergence(run, learning, scenario)
    return exhibits if isinstance(estimate, CannotSay) else [*exhibits, show_convergence(estimate)]


def show_learning_over_rounds(run: RunRecord, learning: LearningRecord) -> Exhibit:
    """Draw accuracy and loss after every round; diverged updates and infeasible rounds are marked."""
    rounds = np.arange(run.num_rounds + 1.0)
    local = _with_start(mean_local_loss(learning))
    with drawing(WIDTH, 4.5) as figure:
        upper, lower = figure.subplots(2, 1, sharex=True)
        _draw_accuracy(upper, rounds, learning)
        _draw_loss(lower, rounds, learning, local)
        diverged = 1 + np.flatnonzero(np.any(learning.outcome == Outcome.DIVERGED, axis=1))
        if diverged.size:
            heights = np.full(len(diverged), 0.04)
            (marks,) = upper.plot(diverged, heights, "x", color=INFEASIBLE, markersize=4, gid="diverged")
            upper.legend([marks], ["an update diverged"], loc="lower right", handletextpad=0.2)
        for axes in (upper, lower):
            fit_rounds(axes, run)
            axes.set_xlim(0, run.num_rounds + 0.5)
        lower.set_xlabel("round")
    return Exhibit(
        "learning-rounds",
        "Accuracy and loss, round by round",
        "Above, the share of test samples that the global model gets right after each round; round 0 is the untrained"
        " model. Below, its loss on the test set, and the loss that training clients saw on their own data. A test loss"
        " that rises while the local one falls is overfitting." + _marks_text(run, learning),
        f"Line chart of accuracy and loss over {run.num_rounds} rounds. {_accuracy_text(learning)}",
        Picture(figure, [Sheet.of_columns(_learning_columns(run, learning))]),
    )


def show_learning_over_time(run: RunRecord, learning: LearningRecord) -> Exhibit:
    """Draw accuracy and loss against the simulated time at which each round ends."""
    time_s = _with_start(cumulative_delay(run), start=0.0)
    with drawing(WIDTH, 4.5) as figure:
        upper, lower = figure.subplots(2, 1, sharex=True)
        _draw_accuracy(upper, time_s, learning)
        _draw_loss(lower, time_s, learning, _with_start(mean_local_loss(learning)))
        upper.set_xlim(0, 1.02 * float(time_s[-1]) or 1.0)
        lower.set_xlabel("simulated time (s)")
    columns = _learning_columns(run, learning)
    del columns["round"], columns["diverged"]
    return Exhibit(
        "learning-seconds",
        "The same against simulated time",
        "Time is the sum of the rounds' delays: what the federation would take, not what this computer took. Compare"
        " schedulers here: one that needs more rounds can still be there earlier.",
        f"Line chart of accuracy and loss over {run.total_delay_s:.1f} simulated seconds. {_accuracy_text(learning)}",
        Picture(figure, [Sheet.of_columns(columns)]),
    )


def show_recall(run: RunRecord, learning: LearningRecord) -> Exhibit:
    """Draw the recall of every label over the rounds; rounds without evaluation show the one before."""
    num_labels = len(learning.label_names)
    shown = _hold(learning.recall).T  # (labels, rounds)
    known = np.isfinite(shown)
    cells = np.zeros((num_labels, run.num_rounds, 4))  # unknown is transparent, and zero still has a tint
    cells[known, :3] = to_rgb(TRAINING)
    cells[known, 3] = 0.1 + 0.9 * shown[known]
    names = [drawable(name, otherwise=f"label {place}", longest=16) for place, name in enumerate(learning.label_names)]
    with drawing(WIDTH, 3.3) as figure:
        axes, key = figure.subplots(1, 2, width_ratios=(40, 1))
        draw_cells(axes, cells)
        fit_rounds(axes, run)
        axes.set(title="Recall of each label", xlabel="round")
        if num_labels <= _MOST_NAMES:
            axes.set_yticks(range(num_labels), names, fontsize=8.0 if num_labels <= 16 else 6.0)
        else:
            axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
            axes.set_ylabel("label")
        ramp = np.zeros((64, 1, 4))
        ramp[:, 0, :3], ramp[:, 0, 3] = to_rgb(TRAINING), np.linspace(1.0, 0.1, 64)
        key.imshow(ramp, aspect="auto", extent=(0, 1, 0, 1))
        key.grid(visible=False)
        key.set_xticks([])
        key.yaxis.tick_right()
        key.yaxis.set_major_formatter(PercentFormatter(1.0))
        if not known.any():
            say(axes, "never evaluated" if learning.best_round is None else "labels are the clients' secret")
    rows = [
        (round, name, float(learning.recall[round - 1, place]))
        for round in range(1, run.num_rounds + 1)
        for place, name in enumerate(learning.label_names)
        if np.isfinite(learning.recall[round - 1, place])
    ]
    return Exhibit(
        "recall",
        "Which classes it recognises",
        "Recall is the share of a class's test samples that are recognised as that class. A row that stays pale is a"
        " class the model never learned: see whether the clients that hold it took part. Blank is not known; rounds"
        " without evaluation show the one before.",
        f"Heat map of the recall of {num_labels} classes over {run.num_rounds} rounds. {_recall_text(learning)}",
        Picture(figure, [Sheet(("round", "label", "recall"), rows)]),
    )


def mean_local_loss(learning: LearningRecord) -> PerRound:
    """Return the mean loss of the training clients on their own data, (rounds,); NaN if none is known."""
    known = np.isfinite(learning.local_loss)
    count = known.sum(axis=1)
    total = np.where(known, learning.local_loss, 0.0).sum(axis=1)
    mean: PerRound = np.divide(total, count, out=np.full(learning.num_rounds, np.nan), where=count > 0)
    return mean


def _draw_accuracy(axes: Axes, x: PerRound, learning: LearningRecord) -> None:
    values = _with_start(learning.accuracy, start=learning.initial_accuracy)
    _plot_known(axes, x, values, TRAINING, "test accuracy")
    axes.set(title="Test accuracy")
    axes.set_ylim(0, 1.04)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    best = learning.best_round
    if best is None:
        say(axes, "no evaluation gave a number")
        return
    accuracy = float(learning.accuracy[best - 1])
    axes.plot(x[best], accuracy, marker="D", markersize=5.5, markerfacecolor="white", color=TRAINING)
    axes.set_title(f"best {100 * accuracy:.1f} %, round {best}", loc="right", color=TRAINING, fontweight="normal")


def _draw_loss(axes: Axes, x: PerRound, learning: LearningRecord, local: PerRound) -> None:
    test = _with_start(learning.loss, start=learning.initial_loss)
    curves = [(local, _LOCAL, "training clients, own data"), (test, TRAINING, "test set")]
    for values, colour, name in curves:
        _plot_known(axes, x, values, colour, name)
    known = np.concatenate([values[np.isfinite(values)] for values, _, _ in curves])
    positive = known[known > 0]
    if positive.size and positive.max() > 100.0 * positive.min():
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(numticks=6))
    elif known.size:
        axes.set_ylim(0, 1.3 * float(known.max()) or 1.0)
    axes.set(title="Loss")
    if known.size:
        axes.legend(loc="upper right", handlelength=1.4, ncols=2, columnspacing=1.2)
    else:
        say(axes, "no loss is a finite number")


def _plot_known(axes: Axes, x: PerRound, values: PerRound, colour: str, name: str) -> None:
    """Plot a line through the known values, with dots if they are few."""
    known = np.isfinite(values)
    if known.any():
        marker = "." if np.count_nonzero(known) <= FEW_POINTS else ""
        axes.plot(x[known], values[known], color=colour, marker=marker, label=name)


def _with_start(values: PerRound, *, start: float = float("nan")) -> PerRound:
    """Return the values preceded by one for round 0."""
    return np.concatenate([[start], values])


def _hold(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rows, with a row without known numbers replaced by the last one that has some."""
    known = np.isfinite(values).any(axis=1)
    last = np.maximum.accumulate(np.where(known, np.arange(len(values)), -1))
    return np.where(last[:, np.newaxis] >= 0, values[last], np.nan)


def _learning_columns(run: RunRecord, learning: LearningRecord) -> dict[str, Column]:
    return {
        "round": np.arange(run.num_rounds + 1),
        "simulated_s": _with_start(cumulative_delay(run), start=0.0),
        "accuracy": _with_start(learning.accuracy, start=learning.initial_accuracy),
        "test_loss": _with_start(learning.loss, start=learning.initial_loss),
        "mean_local_loss": _with_start(mean_local_loss(learning)),
        "diverged": np.append(0, np.count_nonzero(learning.outcome == Outcome.DIVERGED, axis=1)),
    }


def _accuracy_text(learning: LearningRecord) -> str:
    if learning.best_round is None:
        return "No evaluation gave a number."
    best = 100 * float(learning.accuracy[learning.best_round - 1])
    start = f"{100 * learning.initial_accuracy:.1f} %" if np.isfinite(learning.initial_accuracy) else "an unknown value"
    return (
        f"Test accuracy starts at {start}, is best in round {learning.best_round} with {best:.1f} %"
        f" and ends at {100 * learning.final_accuracy:.1f} %."
    )


def _recall_text(learning: LearningRecord) -> str:
    if learning.best_round is None:
        return "It was never evaluated."
    recall = learning.recall[learning.best_round - 1]
    if not np.isfinite(recall).any():
        return "No class has a recall."
    worst, best = int(np.nanargmin(recall)), int(np.nanargmax(recall))
    names = learning.label_names
    return (
        f"At its best, in round {learning.best_round}, the model recognises {names[best]} most often"
        f" ({100 * recall[best]:.0f} %) and {names[worst]} least often ({100 * recall[worst]:.0f} %)."
    )


def _marks_text(run: RunRecord, learning: LearningRecord) -> str:
    diverged = " A red cross: an update diverged and was left out." if learning.count_outcomes(Outcome.DIVERGED) else ""
    return diverged + (" A red column: an infeasible round, in which nobody trains." if run.num_infeasible else "")


def show_privacy(run: RunRecord, learning: LearningRecord, scenario: Scenario) -> Exhibit:
    """Draw epsilon over the rounds, and accuracy against epsilon."""
    # of clients with data; 0 for one that never trained
    spent = np.maximum.accumulate(np.nan_to_num(learning.epsilon), axis=0)[:, learning.samples > 0]
    most, middle = spent.max(axis=1), np.median(spent, axis=1)
    with drawing(WIDTH, 4.5) as figure:
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
    columns = {"round": run.round, "epsilon_most": most, "epsilon_median": middle, "accuracy": learning.accuracy}
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
        Picture(figure, [Sheet.of_columns(columns)]),
    )
