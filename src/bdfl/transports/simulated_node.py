"""A simulated node: the pure node, its store, and the driver's records of it."""

import hashlib
from collections.abc import Sequence

from bdfl.identity import Signer
from bdfl.ledger.block import Genesis
from bdfl.ledger.keeping import Store
from bdfl.ledger.memory_store import MemoryStore
from bdfl.ledger.toolbox import Toolbox
from bdfl.protocol.events import Mine, SetTimer, Timer
from bdfl.protocol.state import Context, NodeState, Timing
from bdfl.transports.hooks import Tamper
from bdfl.transports.node_store import recover


class SimulatedNode:
    """A node of a simulated network; only the driver changes it."""

    __slots__ = (
        "announced",
        "clock_error_ms",
        "context",
        "effects_left",
        "frozen_until_ns",
        "is_up",
        "life",
        "mining",
        "search",
        "slowness",
        "state",
        "store",
        "tamper",
        "timers",
        "uploaded_ns",
    )

    def __init__(
        self, context: Context, store: Store, *, state: NodeState | None = None, tamper: Tamper | None = None
    ) -> None:
        """Set up the node; `state`, if known already, must be the result of `recover`."""
        self.context = context
        self.store = store
        self.state = recover(context, store) if state is None else state
        self.tamper = tamper
        self.slowness = 1.0  # factor on modelled times of training, uploading, mining and sending
        self.clock_error_ms = 0  # offset of its wall clock, positive if ahead of the network's
        self.is_up = True
        self.frozen_until_ns = 0
        self.effects_left: tuple[int, int] | None = None  # until it crashes, and for how long (ns)
        self.life = 0  # restart counter: entries queued before a crash are void
        self.forget()

    def forget(self) -> None:
        """Drop all pending work and timers."""
        self.timers: dict[Timer, SetTimer] = {}
        self.mining: Mine | None = None
        self.search: tuple[int, int, int] | None = None  # height and attempt of a search, and when it ends (ns)
        self.announced = 0  # the height whose own update was sent last
        self.uploaded_ns = 0  # end of its upload

    @property
    def number(self) -> int:
        return self.context.number

    @property
    def height(self) -> int:
        """Number of blocks that the node has committed."""
        return self.state.chain.height


def simulated_signer(seed: int, number: int) -> Signer:
    """The key of a simulated member. It is not secret: it is derived from the seed."""
    return Signer(hashlib.sha256(f"bdfl simulated member {seed} {number}".encode()).digest())


def make_nodes(
    genesis: Genesis,
    initial_model: bytes,
    signers: Sequence[Signer],
    timing: Timing,
    *,
    toolbox: Toolbox | None = None,
    last_height: int | None = None,
    keep_blocks: int = 0,
) -> list[SimulatedNode]:
    """Make a node for every key, at genesis; all share a toolbox, each has a store in memory.

    Nodes beyond the members of genesis are future members: they follow the chain once it admits them.
    """
    shared = Toolbox() if toolbox is None else toolbox
    contexts = [
        Context(number, signer, timing, shared, last_height, is_alone=True, keep_blocks=keep_blocks)
        for number, signer in enumerate(signers)
    ]
    return [SimulatedNode(context, MemoryStore(genesis, initial_model)) for context in contexts]
