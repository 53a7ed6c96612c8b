"""Networks in trouble where nobody lies, the other half of five hundred: `test_faults.py` has those where some do."""

import pytest

from bdfl.scenario.schema_learning import QuorumRule
from campaigns.faults.plan import draw_plan
from tests.transports.many_networks import bundle_seeds, validate_laws


@pytest.mark.parametrize("seeds", bundle_seeds(0))
def test_the_laws_hold_whatever_goes_wrong(seeds):
    validate_laws(seeds)


def test_every_seed_is_in_one_half():
    honest, lying = ([seed for bundle in bundle_seeds(first) for seed in bundle.values[0]] for first in (0, 1))
    assert sorted(honest + lying) == list(range(500))
    assert {draw_plan(seed).quorum for seed in honest} == {QuorumRule.MAJORITY}
    assert {draw_plan(seed).quorum for seed in lying} == {QuorumRule.BFT}
