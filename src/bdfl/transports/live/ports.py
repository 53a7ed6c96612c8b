"""What a live node is connected to: the network, and the work that takes its time. Nothing here waits.

Times are those of `time.monotonic_ns`: nothing waits by the wall clock.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from bdfl.ledger.block import Block, Conditions, Header, Receipt
from bdfl.ledger.chain import ChainState
from bdfl.protocol.messages import Message


@dataclass(frozen=True, eq=False)
class Offer:
    """A blob that a node serves. Its bytes become available evenly from one time to another, as if it were uploaded."""

    data: bytes
    begun_ns: int = 0
    done_ns: int = 0

    def ready_ns(self, end: int) -> int:
        """When the bytes up to offset `end` are available."""
        return self.begun_ns + (self.done_ns - self.begun_ns) * end // max(1, len(self.data))


class Receiver(Protocol):
    """A node as the network sees it; called from any thread, and never waits."""

    def receive(self, message: Message) -> None:
        """A message whose envelope is in order: of this chain, sealed by its sender, within its limits."""
        ...

    def receive_blob(self, holder: int, data: bytes) -> None:
        """A blob that was to be fetched; its digest is right."""
        ...

    def offer(self, to: int, blob: bytes) -> Offer | None:
        """What the node serves to a member under that digest; none: it does not have it."""
        ...

    def notice(self, present: frozenset[int]) -> None:
        """Who is there now, beside the node itself."""
        ...

    def refuse(self, sender: int | None, reason: str) -> None:
        """Something that arrived was dropped."""
        ...


class Link(Protocol):
    """The network as a node sees it."""

    def open(self, receiver: Receiver) -> None:
        """Begins to receive."""
        ...

    def send(self, to: int | None, message: Message) -> None:
        """Sends to one member or all others. The queue is bounded: what does not fit is dropped and counted."""
        ...

    def fetch(self, blob: bytes, size: int, holders: Sequence[int]) -> None:
        """Begins to pull a blob of so many bytes, from these members first; goes on until it is here or forgotten.

        Asked again for one that is under way, the holders are added to those known.
        """
        ...

    def forget_fetches(self) -> None:
        """Ends all pulls: they are of a height that is decided."""
        ...

    def set_members(self, public_keys: Sequence[bytes | None]) -> None:
        """Who may speak from now on, by member number; none: no more."""
        ...

    @property
    def present(self) -> frozenset[int]: ...

    def close(self) -> None: ...


class Work(Protocol):
    """What takes a node's time. Results come by call, from any thread, once or never."""

    def train(self, chain: ChainState, model: bytes, on_done: Callable[[bytes | None], None]) -> None:
        """Trains the round after `chain` from a model's bytes; gives the new model's, none where training diverged."""
        ...

    def spent_micro(self, chain: ChainState) -> int:
        """Epsilon that the node has spent with the training of the round after `chain`, once that is done, in 1e-6."""
        ...

    def stop_training(self) -> None: ...

    def mine(self, chain: ChainState, header: Header, on_found: Callable[[bytes], None]) -> None:
        """Searches a nonce for the header, instead of any before."""
        ...

    def stop_mining(self) -> None: ...

    def measure(self, chain: ChainState, tip: Block | None) -> tuple[Conditions, Receipt | None] | None:
        """The node's conditions in the round after the one worked on, and what the tip's round cost it. Quick."""
        ...

    def upload(self, chain: ChainState) -> int:
        """How long (ns) the node's own update takes, from now, until all its bytes can be had."""
        ...

    def close(self) -> None: ...
