"""Designs for larger federations, judged by exact arithmetic, by counting, and by the simulated network itself."""

from fractions import Fraction
from math import comb

import numpy as np
import pytest

from bdfl.encoding import encode
from bdfl.ledger.member_set import quorum_size
from bdfl.protocol.events import BlobArrived, MessageArrived
from bdfl.protocol.messages import Gossip, Proposal
from bdfl.scenario import Scenario, override_scenario
from bdfl.scenario.schema_learning import QuorumRule
from bdfl.transports.interfaces import Observer
from docs.figures.make_scale import draw_scaling
from docs.figures.scaling import (
    WIDE,
    block_size,
    breaking_liars,
    committee_risk,
    count_children,
    draw_committee,
    exchange_all,
    exchange_tree,
    find_levels,
    heard_in_round,
    least_committee,
    missed_audit_probability,
    study_committees,
    study_exchange,
    study_traffic,
    tail_probability,
)
from tests.transports.test_simulated import INITIAL, make_network


def exact_tail(population, marked, drawn, least):
    """The same probability in whole numbers."""
    ways = sum(comb(marked, x) * comb(population - marked, drawn - x) for x in range(least, min(marked, drawn) + 1))
    return Fraction(ways, comb(population, drawn))


@pytest.mark.parametrize(("population", "marked"), [(7, 0), (7, 3), (7, 7), (40, 13), (1000, 250)])
def test_the_tail_is_that_of_whole_numbers(population, marked):
    for drawn in sorted({1, 2, 5, population // 3, population}):
        for least in range(0, drawn + 2, max(1, drawn // 25)):
            expected = float(exact_tail(population, marked, drawn, least))
            assert tail_probability(population, marked, drawn, least) == pytest.approx(expected, rel=1e-9, abs=1e-300)


def test_the_tail_is_that_of_many_draws():
    rng = np.random.default_rng(5)
    counts = rng.hypergeometric(250, 750, 61, size=200_000)
    for least in (10, 15, 21):
        assert np.mean(counts >= least) == pytest.approx(tail_probability(1000, 250, 61, least), abs=5e-3)


@pytest.mark.parametrize("size", range(1, 60))
def test_fewer_liars_than_break_a_committee_leave_it_safe_and_live(size):
    for rule in QuorumRule:
        quorum, breaking = quorum_size(rule, size), breaking_liars(size, rule)
        assert size - (breaking - 1) >= quorum  # the honest are a quorum
        assert size - breaking < quorum or 2 * quorum - size <= breaking
        if rule is QuorumRule.BFT:
            assert 2 * quorum - size > breaking - 1  # two quorums share somebody honest
            assert 3 * (breaking - 1) < size <= 3 * breaking


def test_the_least_committee_is_safe_and_every_smaller_one_is_not():
    size = least_committee(300, 45, 1e-6, QuorumRule.BFT)
    assert committee_risk(300, 45, size, QuorumRule.BFT) <= 1e-6
    assert all(committee_risk(300, 45, less, QuorumRule.BFT) > 1e-6 for less in range(1, size))
    assert least_committee(30, 10, 0.0, QuorumRule.BFT) is None
    assert least_committee(30, 9, 0.0, QuorumRule.BFT) <= 30


def test_everybody_draws_the_same_committee_and_every_member_is_as_likely():
    members = [3, 5, 8, 13, 21, 34, 55, 89]
    counts = dict.fromkeys(members, 0)
    for number in range(2000):
        tip = number.to_bytes(32, "big")
        committee = draw_committee(tip, members, 3)
        assert committee == draw_committee(tip, members[::-1], 3)
        assert len(set(committee)) == 3
        for member in committee:
            counts[member] += 1
    assert all(count == pytest.approx(2000 * 3 / 8, abs=5 * (2000 * 3 / 8 * 5 / 8) ** 0.5) for count in counts.values())
    assert draw_committee(bytes(32), members, 99) == members


class Ear(Observer):
    """Counts what one node hears while it works on a height."""

    def __init__(self, number, height):
        self.number, self.height = number, height
        self.heard, self.blobs = [], []

    def stepped(self, now_ns, number, done):
        event = done.event
        if number == self.number and isinstance(event, MessageArrived) and event.message.height == self.height:
            self.heard.append(event.message)
        if number == self.number and isinstance(event, BlobArrived) and done.before.chain.height + 1 == self.height:
            self.blobs.append(event.data)

    def num_bytes(self, is_wanted):
        return sum(len(encode(message)) for message in self.heard if is_wanted(message.content))


@pytest.mark.parametrize("members", [8, 24])
def test_the_simulated_network_hears_what_is_computed(members):
    ear = Ear(members - 1, 2)
    changes = [f"clients.count={members}", "clients.min_selected=3", "ledger.quorum=bft", "scheduler.name=all"]
    network = make_network(*changes, rounds=3, observer=ear).network
    network.run()
    expected = heard_in_round(members, members, len(INITIAL))

    def spoken(content):
        return isinstance(content, Gossip)

    kinds = {
        "report_bytes": lambda content: spoken(content) and content.reports,
        "update_bytes": lambda content: spoken(content) and content.updates,
        "block_bytes": lambda content: isinstance(content, Proposal),
        "vote_bytes": lambda content: spoken(content) and content.votes,
    }
    for name, is_wanted in kinds.items():
        # Of updates and votes it has one of its own; real numbers are shorter than the largest there can be.
        num_bytes = ear.num_bytes(is_wanted) + (sum(map(len, ear.blobs)) if name == "update_bytes" else 0)
        assert 0.6 < num_bytes / getattr(expected, name) <= 1.0, name
    answers = sum(not isinstance(message.content, (Gossip, Proposal)) for message in ear.heard)
    num_messages = len(ear.heard) - answers + len(ear.blobs)
    assert expected.num_messages - 6 <= num_messages <= expected.num_messages


def test_blocks_grow_with_the_square_of_the_members_and_a_committee_stops_that():
    assert block_size(1000, 20) / block_size(500, 20) == pytest.approx(4.0, rel=0.1)
    assert block_size(1000, 20, voters=50) / block_size(500, 20, voters=50) == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize(("members", "fan_out"), [(1, 2), (2, 2), (7, 2), (8, 2), (40, 3), (41, 3), (5, 9)])
def test_a_tree_has_every_member_once_and_every_child_a_parent(members, fan_out):
    levels = find_levels(members, fan_out)
    assert [member for first, last in levels for member in range(first, last)] == list(range(members))
    children = count_children(members, fan_out)
    assert children.sum() == members - 1
    listed = [[child for child in range(1, members) if (child - 1) // fan_out == parent] for parent in range(members)]
    assert children.tolist() == [len(found) for found in listed]


def slow_tree(training_s, rate, model_bits, fan_out):
    """The same delay, member by member."""
    order = sorted(range(len(rate)), key=lambda member: (-rate[member], member))

    def done_s(place):
        below = [child for child in range(fan_out * place + 1, fan_out * place + fan_out + 1) if child < len(rate)]
        sum_s = WIDE * model_bits / rate[order[place]]
        return max(
            [training_s[order[place]], *(done_s(child) + WIDE * model_bits / rate[order[child]] for child in below)]
        ) + (len(below) * sum_s)

    return done_s(0) + model_bits / rate[order[0]] + model_bits / min(rate)


@pytest.mark.parametrize("fan_out", [1, 2, 3, 7])
def test_a_tree_takes_what_walking_it_takes(fan_out):
    rng = np.random.default_rng(3)
    training_s, rate = rng.uniform(0.1, 2.0, 50), rng.uniform(1e5, 2e6, 50)
    assert exchange_tree(training_s, rate, 1e6, fan_out).delay_s == pytest.approx(
        slow_tree(training_s, rate, 1e6, fan_out)
    )


def test_two_members_exchange_by_hand():
    training_s, rate = np.array([1.0, 2.0]), np.array([100.0, 50.0])
    assert exchange_all(training_s, rate, 100.0).delay_s == pytest.approx(2.0 + 2.0 + 2.0)
    # The slower trains and sends its sum (4 s); the faster receives it (2 s), then sends the model (1 s and 2 s).
    assert exchange_tree(training_s, rate, 100.0, 2).delay_s == pytest.approx(2.0 + 4.0 + 2.0 + 1.0 + 2.0)


def test_an_audit_is_missed_as_often_as_in_many_draws():
    rng = np.random.default_rng(8)
    drawn = rng.random((20_000, 5, 12)).argsort(axis=2)[:, :, :3]  # who is audited, by each of five, many times
    is_checked = (drawn == 0).any(axis=(1, 2))
    assert 1.0 - np.mean(is_checked) == pytest.approx(missed_audit_probability(12, 5, 3), abs=0.02)
    assert missed_audit_probability(4, 1, 4) == 0.0


def test_the_figure_shows_what_was_studied():
    crowd = override_scenario(Scenario(), ["clients.count=100"])
    committees = study_committees((30, 100), (0.05, 0.1), 1e-3, QuorumRule.BFT)
    traffic = study_traffic((10, 50), 5, 1000, 0.1, 1e-3)
    exchange = study_exchange(crowd, (10, 100), (2, 4))
    picture = draw_scaling(committees, traffic, exchange, exchange)
    assert len(picture.figure.axes) == 4
    assert [len(sheet.rows) for sheet in picture.sheets] == [4, 2, 6, 6]
    assert all(one.committee_bytes <= one.all_bytes for one in traffic)
