"""Members that ran ahead wait for the others: whatever the lead, a network that is well again goes on at once."""

from dataclasses import replace

import pytest

from bdfl.ledger.toolbox import Toolbox
from bdfl.ledger.units import NANO
from bdfl.protocol.messages import BlobWanted
from bdfl.protocol.state import Timing
from bdfl.transports.faults.liar import Liar
from bdfl.transports.faults.lies import Silence
from bdfl.transports.simulated import Network
from bdfl.transports.simulated_node import make_nodes
from campaigns.faults.trial import try_seed
from campaigns.faults.world import TinyWorld
from tests.transports.calm_network import CALM

AHEAD = (4, 7)
SILENT = 0
ATTEMPT_S = 2.0
SETTLED = 4  # blocks, after which nobody waits for the silent member any more
LATENCY_NS = NANO // 200


class Unheard:
    """Loses all that two members say to the others for a while, but their requests for models."""

    def __init__(self):
        self.until_ns = 0

    def deliveries(self, now_ns, sender, receiver, message):
        is_lost = sender in AHEAD and receiver not in AHEAD and now_ns < self.until_ns
        return () if is_lost and not isinstance(message.content, BlobWanted) else (LATENCY_NS,)


def recovery_s(lead_s):
    """Time from when all is well again until the next block, with a grace just below the lead."""
    plan = replace(CALM, num_nodes=8, attempt_ns=round(ATTEMPT_S * NANO), resend_ns=NANO, min_selected=3)
    toolbox = Toolbox()
    world = TinyWorld(plan, toolbox)
    timing = Timing(grace_ns=round(0.9 * lead_s * NANO), attempt_ns=plan.attempt_ns, resend_ns=plan.resend_ns)
    nodes = make_nodes(world.genesis, world.initial_model, world.signers, timing, toolbox=toolbox)
    nodes[SILENT].tamper = Liar([Silence()])
    unheard = Unheard()
    network = Network(nodes, world, postman=unheard)
    others = [node for node in nodes if node.number not in (SILENT, *AHEAD)]
    network.run(lambda: min(node.height for node in others) >= SETTLED)
    unheard.until_ns = network.now_ns + round(lead_s * NANO)
    network.run(until_ns=unheard.until_ns)
    height = min(node.height for node in others)
    network.run(lambda: min(node.height for node in others) > height, until_ns=unheard.until_ns + 1000 * NANO)
    assert min(node.height for node in others) > height
    return (network.now_ns - unheard.until_ns) / NANO


@pytest.mark.parametrize("lead_s", [1, 8, 32, 100, 1000])
def test_recovery_takes_at_most_three_attempts_whatever_the_lead(lead_s):
    assert recovery_s(lead_s) <= ATTEMPT_S * (1.5 + 2.0 + 2.5)


def test_the_network_in_which_two_ran_ahead_of_five_holds():
    verdict = try_seed(1099511627787, with_story=True)
    assert verdict.is_good, verdict.story
