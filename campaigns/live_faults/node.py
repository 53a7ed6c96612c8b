"""A live node with fault points: a store that fails, a wall clock that is off. Takes the arguments of `bdfl`.

The environment names the faults, so that one node of a network can be restarted with another: see `failing_store` and
`wall_clock`. Without them the node is the product's own.
"""

import os
from typing import Any
from unittest.mock import patch

from bdfl.cli import main
from bdfl.ledger.store import Store
from bdfl.protocol.state import Context
from bdfl.transports.live.driver import LiveNode
from campaigns.live_faults.failing_store import with_fault_point
from campaigns.live_faults.wall_clock import shift_wall_clock

NODE_MODULE = "campaigns.live_faults.node"


class FaultyNode(LiveNode):
    """A live node whose store has the fault point of the environment."""

    def __init__(self, context: Context, store: Store, *others: Any, **settings: Any) -> None:
        super().__init__(context, with_fault_point(store, os.environ), *others, **settings)


if __name__ == "__main__":
    shift_wall_clock(os.environ)
    with patch("bdfl.node.service.LiveNode", FaultyNode):
        main()
