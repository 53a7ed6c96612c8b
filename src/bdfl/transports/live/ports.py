"""Interfaces between a live node, its network (`Link`, `Receiver`) and its `Work`. No call blocks.

Times are those of `time.monotonic_ns`, never of the wall clock.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from bdfl.ledger.block import Block, Conditions, Header, Receipt
from bdfl.ledger.chain import ChainState
from bdfl.protocol.messages import Message


@dataclass(frozen=True, eq=False)
class Offer:
    """A blob to serve. Its bytes become available linearly from `begun_ns` to `done_ns`, as in an upload."""

    data: bytes
    begun_ns: int = 0
    done_ns: int = 0

    def ready_ns(self, end: int) -> int:
        """Return the time at which the bytes up to offset `end` are available."""
        return self.begun_ns + (self.done_ns - self.begun_ns) * end // max(1, len(self.data))


class Receiver(Protocol):
    """The node as seen by the network. Called from any thread; never blocks."""

    def receive(self, message: Message) -> None:
        """Take a message of this chain that is authenticated and within its sender's limits."""
        ...

    def receive_blob(self, holder: int, data: bytes) -> None:
        """Take a fetched blob with a verified digest."""
        ...

    def offer(self, to: int, blob: bytes) -> Offer | None:
        """Return the blob to serve to a member under that digest; None if absent."""
        ...

    def notice(self, present: frozenset[int]) -> None:
        """Take the set of other members that are present now."""
        ...

    def refuse(self, sender: int | None, reason: str) -> None:
        """Take note of a dropped message or request."""
        ...


class Link(Protocol):
    """The network as seen by a node."""

    def open(self, receiver: Receiver) -> None:
        """Start receiving."""
        ...

    def send(self, to: int | None, message: Message) -> None:
        """Queue a message to one member or all others. If the bounded queue is full it is dropped and counted."""
        ...

    def fetch(self, blob: bytes, size: int, holders: Sequence[int]) -> None:
        """Download a blob of `size` bytes, preferably from these members, until it is complete or forgotten.

        A second call for the same blob adds holders.
        """
        ...

    def forget_fetches(self) -> None:
        """Cancel all downloads: their height is decided."""
        ...

    def set_members(self, public_keys: Sequence[bytes | None]) -> None:
        """Set the members by number; None: no longer a member."""
        ...

    @property
    def present(self) -> frozenset[int]: ...

    def close(self) -> None: ...


class Work(Protocol):
    """Training and mining of a node. Results come by callback, from any thread, at most once."""

    def train(self, chain: ChainState, model: bytes, on_done: Callable[[bytes | None], None]) -> None:
        """Train the round after `chain`; `on_done` gets the new model, or None if training gave none."""
        ...

    def spent_micro(self, chain: ChainState) -> int:
        """Return the epsilon spent up to the finished training of the round after `chain`, in 1e-6."""
        ...

    def stop_training(self) -> None: ...

    def mine(self, chain: ChainState, header: Header, on_found: Callable[[bytes], None]) -> None:
        """Search a nonce for the header; replaces any earlier search."""
        ...

    def stop_mining(self) -> None: ...

    def measure(self, chain: ChainState, tip: Block | None) -> tuple[Conditions, Receipt | None] | None:
        """Return the node's conditions in the round after the current one, and its receipt of the tip's round."""
        ...

    def upload(self, chain: ChainState) -> int:
        """Return the upload time (ns), from now, of the node's own update."""
        ...

    def close(self) -> None: ...
