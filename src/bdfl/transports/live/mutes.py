"""Temporary muting of members with too many refused messages, and throttling of flooded names.

Unsubscribing is cheaper than rejecting: zenoh then drops the sender's traffic, often at the source. Only messages with
the member's MAC count, since otherwise any member could have another one muted. Unauthenticated floods under a name
only throttle it: their sender is slowed by back-pressure, and the member is still heard.
"""

from dataclasses import dataclass

from bdfl.ledger.units import NANO
from bdfl.transports.live.limits import Bucket, Limits

_BYTES_PER_COST = 4096
_FORGIVEN_AFTER = 10  # times the last mute; then the next one is short again


@dataclass
class _Standing:
    """Budget and last mute of one member."""

    patience: Bucket
    ends_ns: int = 0  # of the last mute
    lasts_s: float = 0.0


class Mutes:
    """Block list of muted members. Time is the caller's monotonic clock, in ns. Not thread-safe."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._standings: dict[int, _Standing] = {}

    def note(self, member: int, size: int, now_ns: int) -> bool:
        """Count a refused message of `size` bytes; return whether it mutes the member."""
        limits = self._limits
        standing = self._standings.get(member)
        if standing is None:
            standing = self._standings[member] = _Standing(Bucket(limits.patience_per_s, limits.patience))
        if now_ns < standing.ends_ns or standing.patience.take(1 + size // _BYTES_PER_COST, now_ns):
            return False
        is_forgiven = not standing.lasts_s or now_ns - standing.ends_ns > _FORGIVEN_AFTER * standing.lasts_s * NANO
        standing.lasts_s = limits.mute_s if is_forgiven else min(2 * standing.lasts_s, limits.max_mute_s)
        standing.ends_ns = now_ns + round(standing.lasts_s * NANO)
        return True

    def end_ns(self, member: int) -> int:
        """Return the end of a member's last mute (ns); 0 if it was never muted."""
        standing = self._standings.get(member)
        return 0 if standing is None else standing.ends_ns

    def muted(self, now_ns: int) -> frozenset[int]:
        """Return the members muted now."""
        return frozenset(member for member, standing in self._standings.items() if now_ns < standing.ends_ns)

    def next_end_ns(self, now_ns: int) -> int | None:
        """Return the next end of a mute (ns); None if no member is muted."""
        return min((one.ends_ns for one in self._standings.values() if now_ns < one.ends_ns), default=None)


class Pressed:
    """Throttled names: more arrives under them than is checked. Time as above. Not thread-safe."""

    def __init__(self, limits: Limits) -> None:
        self._lasts_ns = round(limits.slow_s * NANO)
        self._ends_ns: dict[int, int] = {}

    def note(self, member: int, now_ns: int) -> bool:
        """Throttle a name for a while; return whether it was not throttled before."""
        is_news = now_ns >= self._ends_ns.get(member, 0)
        self._ends_ns[member] = now_ns + self._lasts_ns
        return is_news

    def pressed(self, now_ns: int) -> frozenset[int]:
        """Return the members whose names are throttled now."""
        return frozenset(member for member, end_ns in self._ends_ns.items() if now_ns < end_ns)

    def next_end_ns(self, now_ns: int) -> int | None:
        """Return the next end of a throttling (ns); None if no name is throttled."""
        return min((end_ns for end_ns in self._ends_ns.values() if now_ns < end_ns), default=None)
