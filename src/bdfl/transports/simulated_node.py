"""A simulated node: the pure one, its store, and what the driver remembers of it."""

import hashlib
from collections.abc import Sequence

from bdfl.identity import Signer
from bdfl.ledger.block import Genesis, ModelUpdate
from bdfl.ledger.chain import apply_block, start_chain
from bdfl.ledger.keeping import Store
from bdfl.ledger.memory_store import MemoryStore
from bdfl.ledger.toolbox import Toolbox
from bdfl.protocol.events import KeptProgress, Mine, SetTimer, Timer
from bdfl.protocol.node import begin
from bdfl.protocol.state import Context, NodeState, Recovered, Timing
from bdfl.transports.hooks import Tamper


class SimulatedNode:
    """One node of a simulated network; the driver changes it, others look at it."""

    __slots__ = (
        "announced",
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
        """`state` is what `recover` would give, where that is known already."""
        self.context = context
        self.store = store
        self.state = recover(context, store) if state is None else state
        self.tamper = tamper
        self.slowness = 1.0  # times as long as modelled: training, uploading, mining and sending
        self.is_up = True
        self.frozen_until_ns = 0
        self.effects_left: tuple[int, int] | None = None  # until it crashes, and for how long (ns)
        self.life = 0  # how often it crashed: what was under way in a former life is void
        self.forget()

    def forget(self) -> None:
        """Nothing is under way any more."""
        self.timers: dict[Timer, SetTimer] = {}
        self.mining: Mine | None = None
        self.search: tuple[int, int, int] | None = None  # height and attempt of a search, and when it ends (ns)
        self.announced = 0  # the height whose own update was sent last
        self.uploaded_ns = 0  # when that is over

    @property
    def number(self) -> int:
        return self.context.number

    @property
    def height(self) -> int:
        """Blocks that the node has committed."""
        return self.state.chain.height


def recover(context: Context, store: Store) -> NodeState:
    """The state of a node that knows nothing but its store."""
    chain = start_chain(store.genesis, context.toolbox)
    for block in store.blocks():
        chain = apply_block(chain, block, context.toolbox)
    kept = store.read_round(chain.height + 1)
    updates: list[ModelUpdate] = [signed.update for signed in kept.updates]
    updates += [signed.update for block in kept.candidates for signed in block.body.updates]
    blobs = {update.model: store.get_blob(update.model) for update in updates if update.model}
    recovered = Recovered(
        certificate=store.certificate(chain.height) if chain.height else (),
        update=kept.updates[0] if kept.updates else None,
        report=kept.reports[0] if kept.reports else None,
        blocks=kept.candidates,
        votes=kept.votes,
        progress=KeptProgress(kept.height, kept.attempt, kept.lock) if kept.attempt else None,
        blobs={name: data for name, data in blobs.items() if data is not None},
    )
    return begin(context, chain, recovered)


def simulated_signer(seed: int, number: int) -> Signer:
    """The key of a simulated member. It keeps nothing secret: anybody can derive it from the seed."""
    return Signer(hashlib.sha256(f"bdfl simulated member {seed} {number}".encode()).digest())


def make_nodes(
    genesis: Genesis,
    initial_model: bytes,
    signers: Sequence[Signer],
    timing: Timing,
    *,
    toolbox: Toolbox | None = None,
    last_height: int | None = None,
) -> list[SimulatedNode]:
    """A node for every member, at the beginning of the chain; all share a toolbox, each has a store in memory."""
    shared = Toolbox() if toolbox is None else toolbox
    contexts = [Context(number, signer, timing, shared, last_height) for number, signer in enumerate(signers)]
    return [SimulatedNode(context, MemoryStore(genesis, initial_model)) for context in contexts]
