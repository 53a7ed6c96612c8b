"""Networks in trouble whose chain has a server-side optimizer: all laws of the fault campaign hold."""

from dataclasses import replace

import pytest

from bdfl.scenario import ServerOptimizer
from campaigns.faults.plan import draw_plan
from campaigns.faults.trial import Tools, judge_plan

SEEDS = range(24)  # with crashes, partitions, liars, hoarders, changing members and pruning
BUNDLE = 6


def test_these_networks_have_every_kind_of_trouble():
    plans = [draw_plan(seed) for seed in SEEDS]
    for trouble in ("crashes", "partitions", "freezes", "liars", "hoarders", "selfish", "offers", "keep_blocks"):
        assert any(getattr(plan, trouble) for plan in plans), trouble


@pytest.mark.parametrize("server", [ServerOptimizer.MOMENTUM, ServerOptimizer.ADAM])
@pytest.mark.parametrize("first", range(0, len(SEEDS), BUNDLE))
def test_all_laws_hold_with_a_server_optimizer(first, server):
    for seed in SEEDS[first : first + BUNDLE]:
        verdict = judge_plan(replace(draw_plan(seed), server=server), Tools())
        assert verdict.is_good, (seed, verdict.breaches)
