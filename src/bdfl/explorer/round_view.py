"""One round: conditions, schedule and result of every client."""

from dataclasses import dataclass

from bdfl.explorer.documents import ClientRow


@dataclass(frozen=True, kw_only=True)
class RoundView:
    """State of a round; lists have one entry per client, NaN where unknown."""

    round: int
    gain: list[float]
    power_w: list[float]  # transmit power, if it sends
    cpu_hz: list[float]
    mining_hz: list[float]
    reachable: frozenset[int]
    selected: frozenset[int]
    delivered: frozenset[int]
    winner: int | None
    bandwidth_hz: float | None
    noise_w_per_hz: float | None

    def is_there(self, client: ClientRow) -> bool:
        """Return whether the client is a member in this round."""
        return client.since <= self.round and (client.until is None or self.round <= client.until)
