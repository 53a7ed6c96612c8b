"""Selfish members: none wins more than its share, slows the others down for long, or escapes its removal."""

import pytest

from campaigns.faults.attacks import Attack
from campaigns.faults.selfish import (
    ENTRY_BLOCKS,
    MAX_SLOWDOWN,
    Setting,
    is_share_too_large,
    play,
    share_excess,
    slowdown,
)

NUM_NODES = 4


@pytest.mark.parametrize("attack", [Attack.WITHHOLD, Attack.RELEASE])
@pytest.mark.parametrize("num_nodes", [4, 7])
def test_withholding_ones_statements_wins_no_blocks(attack, num_nodes):
    found = play(Setting(seed=1, num_nodes=num_nodes, attack=attack))
    assert len(found.proposers) == 60
    assert not is_share_too_large(found)
    won, expected, deviation = share_excess([found])
    assert won <= expected + 3 * deviation


@pytest.mark.parametrize("attack", Attack)
def test_the_mean_round_is_at_most_twice_as_long_beside_a_selfish_member(attack):
    assert slowdown(play(Setting(seed=2, num_nodes=NUM_NODES, scheduler="random", attack=attack))) <= MAX_SLOWDOWN


@pytest.mark.parametrize("attack", [Attack.WITHHOLD, Attack.RELEASE, Attack.CENSOR])
def test_a_removal_that_a_quorum_signed_is_on_the_chain_within_five_blocks(attack):
    found = play(Setting(seed=3, num_nodes=NUM_NODES, attack=attack, is_removed=True, num_blocks=ENTRY_BLOCKS))
    assert found.removed_at is not None


def test_the_share_law_notices_a_member_that_wins_every_block():
    found = play(Setting(seed=4, num_nodes=NUM_NODES, num_blocks=20))
    winner = type(found)(found.setting, (3,) * 20, found.times_s, None)
    assert is_share_too_large(winner)
    assert not is_share_too_large(found)
