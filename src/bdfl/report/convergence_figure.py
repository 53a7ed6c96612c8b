"""Figure of Lemma 1: its bound beside the measured gradient norm."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from bdfl.experiment.convergence import ConvergenceEstimate
from bdfl.records import PerRound
from bdfl.report.exhibit import FEW_POINTS, WIDTH, Exhibit
from bdfl.report.style import (
    AXIS,
    BOUND,
    DASHES,
    INFEASIBLE,
    MINING,
    TRAINING,
    Picture,
    Sheet,
    house_style,
    label_ends,
    new_figure,
)


def show_convergence(estimate: ConvergenceEstimate) -> Exhibit:
    """Draw Lemma 1's bound at the rates owed and achieved, with its 1/T term, beside the measured gradient norm."""
    constants, num_rounds = estimate.constants, len(estimate.measured)
    rounds = np.arange(1, num_rounds + 1)
    owed = np.array([bound.total for bound in estimate.owed])
    achieved = np.array([bound.total for bound in estimate.achieved])
    way = np.array([bound.initial_loss for bound in estimate.achieved])
    stays = estimate.achieved[-1].neighbourhood
    marker = "." if num_rounds <= FEW_POINTS else ""
    with house_style():
        figure = new_figure(WIDTH, 3.6)
        axes = figure.subplots()
        axes.set_yscale("log")
        _fit_log(axes, [owed, achieved, way, estimate.measured, estimate.squared_gradient, [constants.known_anyway]])
        axes.set_xlim(0.5, num_rounds + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        axes.plot(rounds, estimate.squared_gradient, ".", color=AXIS, markersize=3.5)
        axes.plot(rounds, estimate.measured, color=TRAINING, marker=marker)
        axes.plot(rounds, achieved, color=INFEASIBLE, marker=marker)
        axes.plot(rounds, owed, color=INFEASIBLE, linewidth=1.0, linestyle=DASHES)
        axes.plot(rounds, way, color=MINING, linewidth=1.0, marker=marker)
        axes.axhline(constants.known_anyway, color=BOUND, linewidth=1.0, linestyle=DASHES)
        ends = [
            (num_rounds, float(estimate.measured[-1]), "measured mean", TRAINING),
            (num_rounds, float(achieved[-1]), "bound, achieved", INFEASIBLE),
            (num_rounds, float(owed[-1]), "bound, beta", INFEASIBLE),
            (num_rounds, float(way[-1]), "its 1/T term", MINING),
            (num_rounds, constants.known_anyway, "G²", BOUND),
        ]
        label_ends(axes, [end for end in ends if end[1] > 0], gap=0.065)
        axes.set(title="Squared gradient norm of the global loss", xlabel="rounds T", ylabel="mean over T rounds")
    rows = [
        (
            round,
            float(estimate.squared_gradient[round - 1]),
            float(estimate.measured[round - 1]),
            *(
                value
                for bound in (estimate.owed[round - 1], estimate.achieved[round - 1])
                for value in (bound.initial_loss, bound.mixed_drift, bound.local_drift, bound.absence, bound.total)
            ),
        )
        for round in range(1, num_rounds + 1)
    ]
    terms = ("initial_loss", "mixed_drift", "local_drift", "absence", "total")
    header = (
        "rounds", "squared_gradient_norm", "measured_mean",
        *(f"{rate}_{term}" for rate in ("owed", "achieved") for term in terms),
    )  # fmt: skip
    worth = "below G²" if estimate.is_telling else "above G², which no gradient exceeds anyway: it says nothing"
    verdict = f"Here it ends {estimate.looseness:.3g} times above what was measured, and {worth}."
    return Exhibit(
        "convergence",
        "The bound and what happened",
        "Lemma 1 bounds the mean squared gradient norm over the first T rounds (dots: of single rounds). Its first term"
        f" falls as 1/T; the others stay, {stays:.3g} here, however long the run. {verdict}",
        f"Line chart on a logarithmic axis: after {num_rounds} rounds the measured mean is"
        f" {float(estimate.measured[-1]):.3g}, the bound {float(achieved[-1]):.3g} at the achieved participation and"
        f" {float(owed[-1]):.3g} at beta.",
        Picture(figure, [Sheet(header, rows)]),
    )


def _fit_log(axes: Axes, curves: Sequence[Sequence[float] | PerRound]) -> None:
    values = np.concatenate([np.asarray(curve, dtype=np.float64) for curve in curves])
    values = values[np.isfinite(values) & (values > 0)]
    if values.size:
        axes.set_ylim(values.min() / 2.0, values.max() * 2.0)
