"""Who is not listened to for a while, a member of whom too much had to be refused; and who is listened to slowly.

Refusing costs little, but it costs; of who is not listened to zenoh drops everything by itself, or the sender's does
not even send it. Only what a member sealed counts: otherwise anybody could have anybody else muted. Of what nobody
sealed, too much in one name has that name heard slowly: whoever sends it waits, and the member itself is still heard.
"""

from dataclasses import dataclass

from bdfl.ledger.units import NANO
from bdfl.transports.live.limits import Bucket, Limits

_BYTES_PER_COST = 4096
_FORGIVEN_AFTER = 10  # times as long as the last mute, the next one is short again


@dataclass
class _Standing:
    """What is left of the patience with one member."""

    patience: Bucket
    ends_ns: int = 0  # of the last mute
    lasts_s: float = 0.0


class Mutes:
    """Counts what is refused of each member. Time is the caller's monotonic clock, in ns; for one thread at a time."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._standings: dict[int, _Standing] = {}

    def note(self, member: int, size: int, now_ns: int) -> bool:
        """Something of so many bytes was refused; whether that mutes the member."""
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
        """When the last mute of that member ends, or ended; 0: it was never muted."""
        standing = self._standings.get(member)
        return 0 if standing is None else standing.ends_ns

    def muted(self, now_ns: int) -> frozenset[int]:
        """Who is not listened to now."""
        return frozenset(member for member, standing in self._standings.items() if now_ns < standing.ends_ns)

    def next_end_ns(self, now_ns: int) -> int | None:
        """When the next mute ends; none: nobody is muted."""
        return min((one.ends_ns for one in self._standings.values() if now_ns < one.ends_ns), default=None)


class Pressed:
    """Names in which more arrives than is looked into. Time as above; for one thread at a time."""

    def __init__(self, limits: Limits) -> None:
        self._lasts_ns = round(limits.slow_s * NANO)
        self._ends_ns: dict[int, int] = {}

    def note(self, member: int, now_ns: int) -> bool:
        """Too much arrived in that name; whether that is news."""
        is_news = now_ns >= self._ends_ns.get(member, 0)
        self._ends_ns[member] = now_ns + self._lasts_ns
        return is_news

    def pressed(self, now_ns: int) -> frozenset[int]:
        """Which names are to be heard slowly now."""
        return frozenset(member for member, end_ns in self._ends_ns.items() if now_ns < end_ns)

    def next_end_ns(self, now_ns: int) -> int | None:
        """When the first of them may be heard as ever; none: all are."""
        return min((end_ns for end_ns in self._ends_ns.values() if now_ns < end_ns), default=None)
