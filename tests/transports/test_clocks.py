"""Block times in a network whose wall clocks are wrong: it goes on, and the chain keeps the time of the others."""

import pytest

from bdfl.ledger.block import TIME_TOLERANCE_MS
from bdfl.ledger.verify import verify_chain
from bdfl.protocol.state import clock_offset_ms
from bdfl.transports.interfaces import recover
from tests.transports.test_simulated import SECOND_NS, finish, make_network

DAY_MS = 24 * 3600 * 1000
FOUR = ("clients.count=4", "clients.min_selected=2", "ledger.quorum=bft")


def play_with(errors_ms, rounds=4, changes=FOUR):
    """A network that made so many blocks, whose first members' clocks are off by that much."""
    play = make_network(*changes, rounds=rounds)
    for node, error_ms in zip(play.network.nodes, errors_ms, strict=False):
        node.clock_error_ms = error_ms
    return finish(play, rounds)


def late_ms(play):
    """How long after its time each block was committed, on the clock of the network."""
    founded_ms = play.network.nodes[0].store.genesis.time_ms
    return [founded_ms + now_ns // 10**6 - block.header.time_ms for now_ns, block in play.commits]


def test_blocks_are_stamped_when_their_mining_begins():
    play = finish(make_network())
    for block, ms in zip(play.blocks, late_ms(play), strict=True):
        assert ms == pytest.approx(block.body.modelled.mining_ns / 10**6, abs=1)


@pytest.mark.parametrize("error_ms", [-DAY_MS, DAY_MS])
@pytest.mark.parametrize("changes", [FOUR, ("clients.count=4", "clients.min_selected=2")])
def test_a_network_goes_on_with_a_member_whose_clock_is_a_day_off_and_no_block_has_its_time(error_ms, changes):
    play = play_with([error_ms], changes=changes)
    assert all(0 <= ms <= TIME_TOLERANCE_MS for ms in late_ms(play))
    if error_ms > 0:  # who is behind stamps the least time that is valid, which here is near the others'
        assert all(block.header.proposer != 0 for block in play.blocks)
    assert len({node.state.chain.tip for node in play.network.nodes}) == 1
    assert verify_chain(play.network.nodes[0].store).is_valid


def test_members_with_wrong_clocks_vote_in_the_first_attempt_once_they_have_seen_a_block_of_the_others():
    play = play_with([-DAY_MS, DAY_MS])  # two right clocks are no quorum of four
    assert [block.header.attempt for block in play.blocks][1:] == [1, 1, 1]
    assert {block.header.proposer for block in play.blocks[1:]} <= {2, 3}


def test_less_than_half_of_the_members_do_not_move_the_median_of_clocks_whoever_was_heard_so_far():
    assert clock_offset_ms({1: DAY_MS, 2: DAY_MS}, range(7)) == 0
    assert clock_offset_ms({1: DAY_MS, 2: DAY_MS, 9: DAY_MS}, range(5)) == 0  # the last was removed
    assert clock_offset_ms({1: -DAY_MS, 2: -DAY_MS}, range(3)) == -DAY_MS


def test_clocks_that_all_differ_slow_a_network_down_and_never_halt_it():
    play = play_with([-DAY_MS, DAY_MS, 10 * DAY_MS, 30 * DAY_MS], rounds=2)
    assert verify_chain(play.network.nodes[0].store).height == 2


@pytest.mark.parametrize("error_ms", [-400 * DAY_MS, 400 * DAY_MS])
def test_clocks_that_are_wrong_alike_change_nothing_but_the_times(error_ms):
    right, wrong = finish(make_network(*FOUR, rounds=4), 4), play_with([error_ms] * 4)
    assert [now_ns for now_ns, _ in wrong.commits] == [now_ns for now_ns, _ in right.commits]
    assert [block.header.proposer for block in wrong.blocks] == [block.header.proposer for block in right.blocks]
    if error_ms > 0:
        times = [[block.header.time_ms for block in play.blocks] for play in (right, wrong)]
        assert [later - earlier for earlier, later in zip(*times, strict=True)] == [error_ms] * 4


def test_the_last_times_are_the_same_after_a_restart():
    play = finish(make_network(*FOUR, rounds=14), 14)
    for node in play.network.nodes:
        times = [block.header.time_ms for block in node.store.blocks(4)]
        assert recover(node.context, node.store).chain.times_ms == node.state.chain.times_ms == tuple(times)


def test_a_node_that_crashed_keeps_to_the_times_of_the_others():
    play = make_network(*FOUR, rounds=4)
    play.network.at(SECOND_NS, lambda: play.network.crash(1, SECOND_NS // 2))
    finish(play, 4)
    assert all(0 <= ms <= TIME_TOLERANCE_MS for ms in late_ms(play))


def test_a_block_carries_every_precommit_that_its_proposer_had_when_it_began_to_mine():
    play = finish(make_network(*FOUR))
    for block in play.blocks[1:]:
        assert [signed.vote.voter for signed in block.body.parent_certificate] == [0, 1, 2, 3]
    assert {len(play.network.nodes[0].store.certificate(height)) for height in (1, 2)} == {3}
