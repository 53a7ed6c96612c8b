"""A live node that withholds its own statements until it has mined; takes the arguments of `bdfl`."""

from unittest.mock import patch

from bdfl.cli import main
from bdfl.protocol.events import Effect, Event
from bdfl.protocol.node import step
from bdfl.protocol.state import Context, NodeState
from bdfl.transports.byzantine import ByzantineMember
from bdfl.transports.interfaces import Transition
from campaigns.faults.attacks import Attack, make_attack

_liar = ByzantineMember(make_attack(Attack.WITHHOLD))


def lying_step(
    context: Context, state: NodeState, event: Event, now_ns: int, utc_ms: int
) -> tuple[NodeState, tuple[Effect, ...]]:
    """Take the honest step, and alter its effects."""
    after, effects = step(context, state, event, now_ns, utc_ms)
    return after, _liar.effects(now_ns, context, Transition(state, event, after, effects))


if __name__ == "__main__":
    with patch("bdfl.transports.live.driver.step", lying_step):
        main()
