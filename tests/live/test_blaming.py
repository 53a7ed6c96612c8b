from types import SimpleNamespace

import pytest

from bdfl.protocol.events import MessageArrived, ServeDecided, Started
from bdfl.transports.interfaces import Transition
from bdfl.transports.live.zenoh_link import Penalties
from tests.live.network_of_links import message_of


class Link:
    """Keeps what it is told of."""

    def __init__(self):
        self.asides, self.blamed = [], []

    def charge_aside(self, sender, num_asides):
        self.asides.append((sender, num_asides))

    def blame(self, sender):
        self.blamed.append(sender)


@pytest.mark.parametrize(
    ("height", "effects", "asides"),
    [
        (8, (), []),  # of the round worked on
        (9, (), []),  # the node may be late itself
        (7, (), [(2, 1)]),
        (7, (ServeDecided(2, 7),), [(2, 2)]),
    ],
)
def test_messages_of_the_past_and_blocks_sent_as_answers_cost_their_sender_more(height, effects, asides):
    link = Link()
    state = SimpleNamespace(chain=SimpleNamespace(height=7))
    Penalties(link).stepped(0, Transition(state, MessageArrived(message_of(2, height)), state, effects))
    Penalties(link).stepped(0, Transition(state, Started(), state, effects))
    assert link.asides == asides


def test_what_the_link_refused_is_not_counted_twice():
    link = Link()
    for reason in ("rate", "vote-signature: another signature found"):
        Penalties(link).refused(3, reason)
    assert link.blamed == [3]
