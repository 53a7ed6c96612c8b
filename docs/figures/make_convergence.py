"""Draws docs/figures/convergence.svg and .png: Lemmas 1 and 2 beside the gradient norm of a run on digits.

The run does what Lemma 2 presumes: plain steps, clients chosen by chance alone, and the mean (3).
Run from the root of the repository: python -m docs.figures.make_convergence
"""

from pathlib import Path

import bdfl
from bdfl.experiment.bounds import ConvergenceEstimate, estimate_convergence
from bdfl.report.learning_figures import show_convergence
from bdfl.report.style import save_picture

CHANGES = ("rounds=300", 'scheduler.name="random"', "learning.momentum=0", "learning.learning_rate=0.002")


def estimate_digits() -> ConvergenceEstimate:
    """Lemmas 1 and 2 of the quick start with these changes."""
    scenario = bdfl.load_scenario("quickstart", list(CHANGES))
    run = bdfl.run(scenario)
    estimate = estimate_convergence(run.record, run.learning, scenario)
    assert isinstance(estimate, ConvergenceEstimate), estimate
    return estimate


if __name__ == "__main__":
    found = estimate_digits()
    print(found.constants, *found.unmet, sep="\n")
    for bound in (found.owed[-1], found.achieved[-1], found.weighted[-1]):
        print(bound, f"{bound.total:.3g}")
    print(f"measured {found.measured[-1]:.3g}")
    exhibit = show_convergence(found)
    print(exhibit.caption)
    for path in save_picture(exhibit.picture, Path(__file__).parent, "convergence"):
        print(f"wrote {path}")
