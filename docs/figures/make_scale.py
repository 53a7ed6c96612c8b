"""Draws docs/results/scale/scale.svg and .png, with the numbers beside it: committees and aggregation trees.

Run from the root of the repository: python docs/figures/make_scale.py
"""

from pathlib import Path

from bdfl.experiment.scaling.study import study_committees, study_exchange, study_traffic
from bdfl.report.scaling_figures import draw_scaling
from bdfl.report.style import Picture, save_picture
from bdfl.scenario import load_scenario
from bdfl.scenario.ledger import QuorumRule
from bdfl.scenario.shipped import find_scenario

RISK = 1e-9
LIAR_SHARE = 0.2
SHARES = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.28, 0.3)
SIZES = (10, 32, 100, 316, 1000, 2000, 4000)
CROWD = 100_000
FAN_OUTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
SELECTED = 20
MODEL_BYTES = 5_000  # of the scenario thousand-nodes


def make_scale() -> Picture:
    """The figure, from the radio and the processors of the scenario of a million clients."""
    crowd = load_scenario(find_scenario("million"), [f"clients.count={CROWD}"])
    return draw_scaling(
        study_committees((100, 1000, 1_000_000), SHARES, RISK, QuorumRule.BFT),
        study_traffic(SIZES, SELECTED, MODEL_BYTES, LIAR_SHARE, RISK),
        study_exchange(crowd, (10, 100, 1000, 10_000, CROWD), (4, 16)),
        study_exchange(crowd, (100, 1000, CROWD), FAN_OUTS),
    )


if __name__ == "__main__":
    for path in save_picture(make_scale(), Path(__file__).parents[1] / "results" / "scale", "scale"):
        print(f"wrote {path}")
