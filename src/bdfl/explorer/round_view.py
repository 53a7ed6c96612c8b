"""One round as everybody found it and played it."""

from dataclasses import dataclass

from bdfl.explorer.documents import ClientRow


@dataclass(frozen=True, kw_only=True)
class RoundView:
    """Lists have one entry per client; NaN where nothing is known."""

    round: int
    gain: list[float]
    power_w: list[float]  # what it sends with, or would
    cpu_hz: list[float]
    mining_hz: list[float]
    reachable: frozenset[int]
    selected: frozenset[int]
    delivered: frozenset[int]
    winner: int | None
    bandwidth_hz: float | None
    noise_w_per_hz: float | None

    def is_there(self, client: ClientRow) -> bool:
        """Whether the client takes part in the network of this round."""
        return client.since <= self.round and (client.until is None or self.round <= client.until)
