"""How much one peer may ask of a node: token buckets per member, so that whoever floods harms only itself.

What came in somebody's name need not be its own: any member certifies any name, access points and relays forward. So
there are two kinds of buckets: what may be looked into on one line, which is a member's name by one path, and what a
member may say, of which only what it sealed takes. A name in which more arrives than may be looked into is heard
slowly: then whoever sends it has to wait.
"""

from dataclasses import dataclass

from bdfl.ledger.units import NANO

_MESSAGE_BYTES = 256 * 1024  # that any message may have
_BYTES_PER_PAIR = 256  # and some more for each two members: a block holds votes of all on what all have said


def message_limit(num_members: int) -> int:
    """The most bytes an honest message of so many members has, several times over: a block of 24 has some 50 kB."""
    return _MESSAGE_BYTES + _BYTES_PER_PAIR * num_members**2


@dataclass(frozen=True)
class Limits:
    """What a node takes from each single member. Honest rounds stay far below; what is over is dropped and counted.

    A member of 24 says some 10 messages a round, and a few hundred a second when others catch up from it.
    """

    max_message_size: int = message_limit(64)  # of an encoded message
    checks_per_s: int = 500  # seals looked at in one member's name
    checks_burst: int = 2_000
    slow_per_s: int = 200  # messages taken in a name in which more arrived than that, to all and to one each
    slow_requests_per_s: int = 50  # each is answered, which costs as much again
    slow_burst: int = 20  # taken at once
    slow_bytes: int = 64 * 1024  # that cost as much as another one
    slow_s: float = 10.0  # after the last one that had to wait
    messages_per_s: int = 200  # that it sealed
    messages_burst: int = 2_000
    bytes_per_s: int = 8 * 2**20
    bytes_burst: int = 32 * 2**20
    requests_per_s: int = 150  # for pieces of blobs: more than the 128 of 512 KiB that are served
    requests_burst: int = 1_000
    served_per_s: int = 64 * 2**20  # bytes of blobs
    served_burst: int = 1024 * 2**20
    refused_cost: int = 16  # in messages, of one that its sender sealed and that was refused
    aside_cost: int = 3  # in messages, of one about a round that is over, and of a block sent as an answer
    patience: int = 1_000  # such messages of 4 kB after which a member is not listened to for a while
    patience_per_s: int = 20  # how fast that is forgotten
    mute_s: float = 5.0  # for the first time, then twice as long each time
    max_mute_s: float = 60.0
    pending: int = 512  # of one member, waiting to be read
    pending_bytes: int = 64 * 2**20  # of all, waiting to be read
    outgoing: int = 4_096  # to all, waiting to be sent
    outgoing_bytes: int = 128 * 2**20
    answers: int = 64  # to one member, waiting to be sent
    answers_bytes: int = 8 * 2**20


class Bucket:
    """Tokens that come back at a rate, up to a burst. Time is the caller's monotonic clock, in ns."""

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s, self._burst = per_s, burst
        self._tokens = float(burst)
        self._at_ns = 0

    def take(self, amount: float, now_ns: int) -> bool:
        """Takes so many tokens if they are there."""
        self._refill(now_ns)
        if self._tokens < amount:
            return False
        self._tokens -= amount
        return True

    def drain(self, amount: float, now_ns: int) -> None:
        """Takes so many tokens, or all that are there."""
        self._refill(now_ns)
        self._tokens = max(0.0, self._tokens - amount)

    def owe(self, amount: float, now_ns: int) -> None:
        """Takes so many tokens, also such as are not there: then the next ones wait for these first."""
        self._refill(now_ns)
        self._tokens -= amount

    def wait_ns(self, amount: float, now_ns: int) -> int:
        """How long until so many tokens are there; those above the burst never are, and count as the burst."""
        self._refill(now_ns)
        return max(0, int((min(amount, self._burst) - self._tokens) / self._per_s * NANO))

    def _refill(self, now_ns: int) -> None:
        passed_s = max(0, now_ns - self._at_ns) / NANO
        self._tokens = min(self._burst, self._tokens + passed_s * self._per_s)
        self._at_ns = max(self._at_ns, now_ns)


class LineAllowance:
    """Budgets of one line, before anything is authenticated."""

    def __init__(self, limits: Limits) -> None:
        self.checks = Bucket(limits.checks_per_s, limits.checks_burst)
        self.bytes = Bucket(limits.bytes_per_s, limits.bytes_burst)
        self.request_checks = Bucket(limits.requests_per_s, limits.requests_burst)


class Allowance:
    """Budgets of one member, for what it authenticated."""

    def __init__(self, limits: Limits) -> None:
        self.messages = Bucket(limits.messages_per_s, limits.messages_burst)
        self.requests = Bucket(limits.requests_per_s, limits.requests_burst)
        self.served = Bucket(limits.served_per_s, limits.served_burst)
        self.num_pending = 0
