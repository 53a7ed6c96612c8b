"""Strategy for Flower servers: the schedulers, the cost model and the audit chain.

`ScheduledFedAvg` is for the message API (`flwr.serverapp`), a thin wrapper of `ScheduledRounds`, which needs no
Flower. See docs/flower-server.md.
"""

from bdfl.errors import require

require("bdfl.flower", "flwr.serverapp.strategy")  # Flower 1.41 or later

from bdfl.flower.rounds import ScheduledRounds  # noqa: E402
from bdfl.flower.strategy import ScheduledFedAvg  # noqa: E402

__all__ = ["ScheduledFedAvg", "ScheduledRounds"]
