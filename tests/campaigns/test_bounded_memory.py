"""A member that sends without end fills nobody's memory: the attack of `hoarding`, counted, and its law."""

from dataclasses import replace

import pytest

from bdfl.ledger.cache import VerificationCache
from bdfl.protocol.events import FetchBlob, MessageArrived, Send, Started
from bdfl.protocol.proposals import MAX_AHEAD
from bdfl.protocol.sync import MAX_EARLY
from bdfl.protocol.updates import MAX_BLOBS
from bdfl.scenario import QuorumRule
from bdfl.transports.interfaces import Transition
from campaigns.faults.hoarding import Hoarder
from campaigns.faults.laws import check_bounded_memory, find_breaches
from campaigns.faults.plan import draw_plan
from campaigns.faults.recorder import Recorder
from campaigns.faults.trial import play
from tests.protocol.manual_network import ManualNetwork

LIAR = 1
NUM_ATTEMPTS, NUM_EACH = 17, 9


class Frank:
    """A tamper that changes nothing."""

    def effects(self, now_ns, context, done):
        return done.effects

    def serve(self, blob, data):
        return data


def hoard(network, victim):
    """Lets the liar tell one member all it can, and answer all that it asks."""
    hoarder, node = Hoarder(Frank(), NUM_ATTEMPTS, NUM_EACH), network.nodes[LIAR]

    def tell(event):
        return hoarder.effects(0, node.context, Transition(node.state, event, node.state, ()))

    said = list(tell(Started()))
    num_asked = 0
    while said:
        send = said.pop(0)
        if send.to not in (None, victim.number):
            continue
        effects = list(victim.hear(send.message))
        while effects:
            effect = effects.pop(0)
            if isinstance(effect, FetchBlob) and effect.holder == LIAR:
                num_asked += 1
                effects += victim.receive_blob(hoarder.serve(effect.blob, None), LIAR)
            elif isinstance(effect, Send) and effect.to in (None, LIAR):
                num_asked += 1
                said += tell(MessageArrived(effect.message))
    return num_asked


@pytest.fixture
def network():
    network = ManualNetwork(num_members=4, quorum=QuorumRule.BFT)
    network.collect()
    return network


def test_a_scheduled_member_with_hundreds_of_voted_blocks_is_held_to_two_models_and_a_block_an_attempt(network):
    victim = network.nodes[0]
    before = len(victim.state.blobs), len(victim.state.candidates)
    hoard(network, victim)
    num_blobs, num_candidates = len(victim.state.blobs), len(victim.state.candidates)
    assert before == (4, 0)
    assert num_blobs == 4 - 1 + MAX_BLOBS  # without the limit: 310
    assert num_candidates == 1 + MAX_AHEAD  # one first prevote for each attempt; without the limits 306
    assert len(victim.state.wanted_blocks) + len(victim.state.wanted_blobs) == 0
    assert LIAR in victim.state.evidence


SEED = next(seed for seed in range(1, 1000, 2) if draw_plan(seed).hoarders and draw_plan(seed).scheduler == "all")


@pytest.fixture(scope="module")
def hoarded():
    """A trial in which all liars fill the others' memory, and nothing else goes wrong."""
    plan = draw_plan(SEED)
    calm = replace(plan, partitions=(), crashes=(), freezes=(), slow=(), offers=())
    recorder = Recorder(calm.num_keys)
    trial, _, error = play(calm, recorder, VerificationCache())
    assert error is None
    return trial


def test_a_network_with_members_that_fill_memory_breaks_no_law(hoarded):
    assert find_breaches(hoarded, VerificationCache()) == []
    assert len(hoarded.record.nodes[hoarded.plan.honest[0]].commits) > 2


@pytest.mark.parametrize("what", ["most_blobs", "most_candidates", "most_early"])
def test_the_law_sees_a_node_that_holds_too_much(hoarded, what):
    node = hoarded.plan.honest[-1]
    record = hoarded.record.nodes[node]
    kept = getattr(record, what)
    num_members = hoarded.plan.num_keys
    too_many = {
        "most_blobs": num_members + 4 * len(hoarded.plan.liars) + 1,
        "most_candidates": {1: 2 * num_members * (1 + MAX_AHEAD) + 2},
        "most_early": MAX_EARLY * num_members + 1,
    }[what]
    try:
        setattr(record, what, too_many)
        breach = check_bounded_memory(hoarded, VerificationCache())
    finally:
        setattr(record, what, kept)
    assert breach is not None
    assert breach.what.startswith(f"node {node} held")
    assert check_bounded_memory(hoarded, VerificationCache()) is None
