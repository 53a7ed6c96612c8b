"""Flower strategies for a central server, with bdfl's schedulers, cost model and audit chain.

`ScheduledFedAvg` is for the message API (`flwr.serverapp`), `LegacyScheduledFedAvg` for the older one (`flwr.server`).
Both are thin wrappers of `ScheduledRounds`, which is independent of Flower. See docs/flower-server.md.
"""

from bdfl.errors import require

require("bdfl.flower", "flwr.serverapp.strategy")  # Flower 1.41 or later

from bdfl.flower.legacy import LegacyScheduledFedAvg  # noqa: E402
from bdfl.flower.rounds import ScheduledRounds  # noqa: E402
from bdfl.flower.strategy import ScheduledFedAvg  # noqa: E402

__all__ = ["LegacyScheduledFedAvg", "ScheduledFedAvg", "ScheduledRounds"]
