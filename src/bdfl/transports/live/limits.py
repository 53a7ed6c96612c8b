"""Rate limits: token buckets per member, so that a flooding member harms only itself.

A message under a member's name may be forged: any member can certify any name, and access points and relays forward.
So there are two kinds of buckets. One bounds unauthenticated checks per line, a member's name on one path. The other
bounds a member, and only messages with its MAC take from it. A name over its check limit is throttled by back-pressure.
"""

from dataclasses import dataclass

from bdfl.ledger.units import NANO

_MESSAGE_BYTES = 256 * 1024  # base limit of a message
_BYTES_PER_PAIR = 256  # added per pair of members: a block holds votes of all on updates of all


def message_limit(num_members: int) -> int:
    """Return the size limit of a message (bytes), far above honest ones: a block of 24 members has some 50 kB."""
    return _MESSAGE_BYTES + _BYTES_PER_PAIR * num_members**2


@dataclass(frozen=True)
class Limits:
    """Limits per member, far above honest rounds. Messages over a limit are dropped and counted.

    One of 24 members sends some 10 messages a round, and a few hundred a second while others sync from it.
    """

    max_message_size: int = message_limit(64)  # of an encoded message
    checks_per_s: int = 500  # MAC checks per line
    checks_burst: int = 2_000
    slow_per_s: int = 200  # messages of a throttled name, broadcast and direct each
    slow_requests_per_s: int = 50  # each also costs an answer
    slow_burst: int = 20
    slow_bytes: int = 64 * 1024  # of payload cost as much as a message
    slow_s: float = 10.0  # throttling after the last wait
    messages_per_s: int = 200  # authenticated
    messages_burst: int = 2_000
    bytes_per_s: int = 8 * 2**20
    bytes_burst: int = 32 * 2**20
    requests_per_s: int = 150  # for pieces: more than the 128 of 512 KiB that `served_per_s` allows
    requests_burst: int = 1_000
    served_per_s: int = 64 * 2**20  # bytes of blobs
    served_burst: int = 1024 * 2**20
    refused_cost: int = 16  # in messages, of an authenticated one that was refused
    aside_cost: int = 3  # in messages, of one about a past round, and of a block sent in answer
    patience: int = 1_000  # refused messages (plus one per 4 kB) before a member is muted
    patience_per_s: int = 20  # refill rate
    mute_s: float = 5.0  # the first time, then doubled each time
    max_mute_s: float = 60.0
    pending: int = 512  # of one member, waiting to be decoded
    pending_bytes: int = 64 * 2**20  # of all, waiting to be decoded
    outgoing: int = 4_096  # broadcasts waiting to be sent
    outgoing_bytes: int = 128 * 2**20
    answers: int = 64  # to one member, waiting to be sent
    answers_bytes: int = 8 * 2**20


class Bucket:
    """A token bucket. Time is the caller's monotonic clock, in ns."""

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s, self._burst = per_s, burst
        self._tokens = float(burst)
        self._at_ns = 0

    def take(self, amount: float, now_ns: int) -> bool:
        """Take `amount` tokens if available; return whether they were."""
        self._refill(now_ns)
        if self._tokens < amount:
            return False
        self._tokens -= amount
        return True

    def drain(self, amount: float, now_ns: int) -> None:
        """Take `amount` tokens, or all if there are fewer."""
        self._refill(now_ns)
        self._tokens = max(0.0, self._tokens - amount)

    def owe(self, amount: float, now_ns: int) -> None:
        """Take `amount` tokens, going into debt if there are fewer."""
        self._refill(now_ns)
        self._tokens -= amount

    def wait_ns(self, amount: float, now_ns: int) -> int:
        """Return the time (ns) until `amount` tokens are available; amounts above the burst count as the burst."""
        self._refill(now_ns)
        return max(0, int((min(amount, self._burst) - self._tokens) / self._per_s * NANO))

    def _refill(self, now_ns: int) -> None:
        passed_s = max(0, now_ns - self._at_ns) / NANO
        self._tokens = min(self._burst, self._tokens + passed_s * self._per_s)
        self._at_ns = max(self._at_ns, now_ns)


class LineAllowance:
    """Budgets of one line, before authentication."""

    def __init__(self, limits: Limits) -> None:
        self.checks = Bucket(limits.checks_per_s, limits.checks_burst)
        self.bytes = Bucket(limits.bytes_per_s, limits.bytes_burst)
        self.request_checks = Bucket(limits.requests_per_s, limits.requests_burst)


class Allowance:
    """Budgets of one member, for authenticated messages and requests."""

    def __init__(self, limits: Limits) -> None:
        self.messages = Bucket(limits.messages_per_s, limits.messages_burst)
        self.requests = Bucket(limits.requests_per_s, limits.requests_burst)
        self.served = Bucket(limits.served_per_s, limits.served_burst)
        self.num_pending = 0
