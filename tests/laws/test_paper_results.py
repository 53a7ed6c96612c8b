"""The paper's results with few seeds and our calibrated values; `bdfl reproduce table4` has them with twenty."""

import pytest

from bdfl.experiment.comparison import PAPER_SCHEDULERS, compare
from bdfl.reproduce.figures import (
    DRAWN_EXACT,
    EXACT_ABOVE_BOUND_PERCENT,
    EXACT_REDUCTION_PERCENT,
    EXACT_SHORTFALL,
    REDUCTION_TOLERANCE_POINTS,
    TIME_TOLERANCE_PERCENT,
)
from bdfl.reproduce.results import DATA_SETS, PAPER_REDUCTION_PERCENT, PAPER_TIME_S
from bdfl.scenario import load_scenario
from bdfl.scenario.files import find_scenario


@pytest.mark.parametrize("data_set", DATA_SETS)
def test_times_reductions_and_the_distance_to_the_bound_are_those_promised(data_set):
    scenario = load_scenario(find_scenario(f"paper-{data_set}"))
    found = compare(scenario, (*PAPER_SCHEDULERS, DRAWN_EXACT), num_seeds=3, frontier_tradeoffs=(), workers=1)
    results = {result.scheduler: result for result in found.results}
    for scheduler, paper_s in PAPER_TIME_S[data_set].items():
        assert results[scheduler].total_s.mean == pytest.approx(paper_s, rel=TIME_TOLERANCE_PERCENT / 100)
    drc, exact = results["drc"], results[DRAWN_EXACT]
    assert found.best_baseline == "channel-best"
    assert abs(drc.reduction_percent.mean - PAPER_REDUCTION_PERCENT[data_set]) <= REDUCTION_TOLERANCE_POINTS
    assert exact.reduction_percent.mean >= EXACT_REDUCTION_PERCENT
    assert exact.worst_shortfall <= EXACT_SHORTFALL
    assert exact.above_bound_percent.mean <= EXACT_ABOVE_BOUND_PERCENT
