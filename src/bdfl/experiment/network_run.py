"""A run on a simulated network: its members, their chain, and the records derived from it."""

import gc
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from bdfl.environment.draws import MiningRaces
from bdfl.errors import BdflError
from bdfl.experiment.run_folder import BadRunFolder
from bdfl.experiment.simulation import Draws, PlannedRound, record_round
from bdfl.identity import Signer
from bdfl.learning.privacy_accounting import noise_micro_of
from bdfl.learning.weights import Layout
from bdfl.ledger.block import Block, Certificate, Conditions, Genesis
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain import (
    ChainState,
    apply_block,
    modelled_costs,
    plan_after,
    settle_round,
    spent_after,
    start_chain,
)
from bdfl.ledger.chain_params import read_decision, weights_file
from bdfl.ledger.costs import NANO, to_measure
from bdfl.ledger.errors import MissingBlob
from bdfl.ledger.genesis import SIMULATED_TIME_MS, conditions_of, first_prospect, make_genesis
from bdfl.ledger.schedule import Plan, plan_round
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.ledger.store import OverlayStore, Store, rested_on
from bdfl.protocol.node import begin
from bdfl.protocol.state import Context, Recovered
from bdfl.records import RoundRecord
from bdfl.scenario import MiningMode, Scenario
from bdfl.scenario.schema_learning import is_function
from bdfl.transports.cost_model import ScenarioCostModel, Train, scheduled_problem, simulated_timing
from bdfl.transports.faults import faults_of
from bdfl.transports.interfaces import parent_model
from bdfl.transports.simulated import Ending, Network, SimulatedNode, simulated_signer
from bdfl.types import PerClientMask

# A run of the protocol: the members of a scenario in a simulated network, with their chain archived in a folder.

_LEAST_MEMORY = 2**24  # bytes of cached models; more for large models
_PATIENCE_NS = 3600 * NANO  # simulated timeout of a block, in addition to ten rounds
_PATIENCE_ROUNDS = 10
_OBJECTS_PER_COLLECTION = 100_000, 20, 20  # a node allocates hundreds per step, hardly any of them in a cycle
_BLOCKS_IN_MEMORY = 1  # whose models a simulated member caches; the archive has the others
_STATES_KEPT = 3  # of the chain: members of a resumed run start before its tip, with receipts of the round before


class NetworkStuck(BdflError):
    """A simulated network that cannot commit a block because of too many faults."""


def member_keys(scenario: Scenario) -> list[Signer]:
    """Keys of the simulated members: derived from the seed, so reproducible and not secret."""
    return [simulated_signer(scenario.seed, number) for number in range(scenario.clients.count)]


def run_genesis(
    scenario: Scenario,
    draws: Draws,
    layout: Layout,
    initial_model: bytes,
    signers: Sequence[Signer] | None = None,
    time_ms: int = SIMULATED_TIME_MS,
) -> Genesis:
    """Return the genesis of a run's chain, by default with the keys of simulated members."""
    noise_micro = None
    if scenario.privacy.is_on:
        noise_micro = noise_micro_of(scenario, [int(samples) for samples in draws.federation.samples])
    return make_genesis(
        scenario,
        draws.federation,
        draws.participation_rate,
        draws.states[0],
        [signer.public_key for signer in (member_keys(scenario) if signers is None else signers)],
        layout,
        initial_model,
        noise_micro=noise_micro,
        time_ms=time_ms,
    )


def run_toolbox(scenario: Scenario, model_size: int) -> VerificationCache:
    """Return the verification cache shared by all members of a run; it holds the models of one and a half rounds."""
    in_a_round = 2 * model_size * (scenario.clients.count + 1)  # bytes and weights
    return VerificationCache(max_bytes=max(_LEAST_MEMORY, 3 * in_a_round // 2), own_functions=own_functions(scenario))


def own_functions(scenario: Scenario) -> frozenset[str]:
    """Return the aggregation rule if it is a user function: running the scenario permits it."""
    rule = scenario.learning.aggregation.rule
    return frozenset([rule] if is_function(rule) else [])


def drawn_conditions(draws: Draws, round: int, client: int) -> Conditions | None:
    """Conditions of a client in a round; None if it is away, or after the last round drawn."""
    state = draws.states[round - 1] if round <= len(draws.states) else None
    return None if state is None or not state.available[client] else conditions_of(state, client)


@contextmanager
def open_archive(path: Path, genesis: Genesis, initial_model: bytes) -> Iterator[ChainStore]:
    """Open the chain in a run's folder, or create it; raise `BadRunFolder` on another genesis.

    Writes are not fsynced: a simulation can be repeated.
    """
    if path.exists() and any(path.iterdir()):
        archive = ChainStore.open(path, durable=False)
    else:
        archive = ChainStore.create(path, genesis, initial_model, durable=False)
    with archive:
        if archive.genesis != genesis:
            raise BadRunFolder(
                f"{path}: begins otherwise than the scenario now says: another version of the scheduler?"
            )
        yield archive


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Raise the GC thresholds inside; cyclic collection otherwise takes a sixth of the run time."""
    usual = gc.get_threshold()
    gc.set_threshold(*_OBJECTS_PER_COLLECTION)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


class NetworkRun:
    """A run on a simulated network so far: the archive of its chain, the state after its last block, and its records.

    `advance` follows blocks that are in the archive already, `play` has the members commit the remaining ones.
    """

    def __init__(self, scenario: Scenario, draws: Draws, archive: ChainStore, cache: VerificationCache) -> None:
        """Begin at the genesis, whatever the archive has."""
        self._scenario = scenario
        self._draws = draws
        self._archive = archive
        self._cache = cache
        start = start_chain(archive.genesis, cache)
        self._states = deque([start], maxlen=_STATES_KEPT)  # after the last blocks, newest last
        self._plan: Plan = plan_round(start.params, first_prospect(start.params), cache)
        self.records: list[RoundRecord] = []

    @property
    def chain(self) -> ChainState:
        """State after the last recorded block."""
        return self._states[-1]

    def plan_next(self) -> PlannedRound:
        """Return the round after the last block, as agreed on the chain."""
        # Iterations and bound of the scheduler are not on the chain: they come from planning the round again.
        own = self._plan.decision
        decision = replace(read_decision(self.chain.schedule), bound=own.bound, iterations=own.iterations)
        state = self._draws.states[self.chain.height]
        return PlannedRound(self._scenario, scheduled_problem(self.chain), state, decision)

    def advance(self, block: Block) -> RoundRecord:
        """Record the next round, which ended in `block`."""
        planned, chain, body = self.plan_next(), self.chain, block.body
        self._plan = plan_after(chain, settle_round(chain, body.updates, body.reports, body.entries), self._cache)
        self._states.append(apply_block(chain, block, self._cache))
        queue = to_measure(body.queue_nano[: chain.num_members], NANO)
        record = record_round(planned, queue, delivered_by(block), mined=self._mining(planned, block))
        self.records.append(record)
        return record

    def _mining(self, planned: PlannedRound, block: Block) -> tuple[float, int] | None:
        """Mining time (s) and winner, if these are sampled."""
        if self._scenario.mining.mode is not MiningMode.SAMPLED or not planned.decision.is_feasible:
            return None
        races = MiningRaces(self._scenario, planned.state.round, planned.decision.mining_hz, 0.0)
        proposer = block.header.proposer
        return races.finding_s(block.header.attempt)[proposer], proposer

    def play(self, train: Train, on_block: Callable[[ChainState, Block, bytes], None]) -> None:
        """Play the remaining rounds; blocks that the archive has already are taken as they are.

        `on_block` is called for every new block, recorded and archived: the chain before, the block, its weights.

        Members start one block before the archive's tip and replay its round with its updates. So each has its own
        votes for the tip, which the chain does not record, and the run continues as if never interrupted. With faults a
        replay would diverge: members then start at the tip, all with the same votes for it.
        """
        for block in self._archive.blocks(self.chain.height + 1):
            self._extend(block, self._archive, on_block)
        if self.chain.height < self._scenario.rounds:
            with _seldom_collected():
                self._play_members(train, on_block)

    def _extend(self, block: Block, store: Store, on_block: Callable[[ChainState, Block, bytes], None]) -> None:
        """Record a block that is in the archive, and report it."""
        before = self.chain
        self.advance(block)
        model = store.get_blob(block.body.model)
        if model is None:
            raise MissingBlob(block.body.model)
        on_block(before, block, weights_file(store.genesis, model))

    def _play_members(self, train: Train, on_block: Callable[[ChainState, Block, bytes], None]) -> None:
        first = start_chain(self._archive.genesis, self._cache)
        trouble = faults_of(self._scenario, max(modelled_costs(first, self._cache).delay_ns, 1))
        liars = frozenset[int]() if trouble is None else frozenset(trouble.tampers)
        tip = self._archive.block(self.chain.height) if self.chain.height else None
        replayed = tip if trouble is None else None
        start = self.chain if replayed is None else self._states[-2]
        certificate: Certificate = ()
        if tip is not None:
            certificate = self._archive.certificate(tip.header.height)
            if replayed is not None:
                certificate = replayed.body.parent_certificate

        world = ScenarioCostModel(
            self._scenario,
            train if replayed is None else self._recall_or_train(train, replayed),
            partial(drawn_conditions, self._draws),
            lambda client, chain: spent_after(chain, client),
        )
        for state in self._states:
            if state.height < start.height:
                world.round_of(state)
        recovered = Recovered(certificate=certificate, model=parent_model(self._archive, start))
        timing, rounds, cache = simulated_timing(self._scenario), self._scenario.rounds, self._cache
        nodes: list[SimulatedNode] = []
        for number, signer in enumerate(member_keys(self._scenario)):
            context = Context(number, signer, timing, cache, rounds, is_alone=True)
            store = OverlayStore(self._archive, start.height)
            nodes.append(SimulatedNode(context, store, state=begin(context, start, recovered)))

        def settle(number: int, block: Block, certificate: Certificate) -> None:
            """Archive a block when the first honest member commits it."""
            nonlocal replayed
            store = nodes[number].store
            store.prune(_BLOCKS_IN_MEMORY)
            if number in liars or (replayed is None and block.header.height <= self.chain.height):
                return
            if trouble is None:  # as if started here
                network.set_clock(self._decided_ms(block, certificate))
            if replayed is None:
                self._keep(store, block, certificate)
                self._extend(block, store, on_block)
            elif replayed == block:
                replayed = None
            else:
                raise BadRunFolder(
                    f"block {block.header.height} comes out as {block.digest.hex()[:12]}, the folder's chain has"
                    " another one: another version of a library, or another machine?"
                )

        network = Network(
            nodes,
            world,
            delivery=None if trouble is None else trouble.delivery,
            on_commit=settle,
            voting_ns=round(self._scenario.protocol.voting_s * NANO),
        )
        if start.height:
            block = self._archive.block(start.height)
            network.set_clock(self._decided_ms(block, self._archive.certificate(start.height)))
        if trouble is not None:
            trouble.bring_to(network)
        while self.chain.height < self._scenario.rounds:
            round_ns = modelled_costs(self.chain, self._cache).delay_ns
            self._play_round(network, network.now_ns + _PATIENCE_NS + _PATIENCE_ROUNDS * round_ns)

    def _play_round(self, network: Network, until_ns: int) -> None:
        """Run until the next block is committed."""
        height = self.chain.height + 1
        if network.run(lambda: self.chain.height >= height, until_ns=until_ns) is not Ending.DONE:
            raise NetworkStuck(
                f"round {height}: no block up to {until_ns / NANO:.0f} simulated seconds: more members fail or lie than"
                f" the rule {self._scenario.ledger.quorum.value!r} bears"
            )

    def _decided_ms(self, block: Block, certificate: Certificate) -> int:
        """Wall clock (ms) at which a block was decided, derived from the chain: its timestamp, mining and voting."""
        mining_ms = max(signed.vote.mining_ms for signed in certificate)
        return block.header.time_ms + mining_ms + round(self._scenario.protocol.voting_s * 1000)

    def _keep(self, store: Store, block: Block, certificate: Certificate) -> None:
        for use in rested_on(block):
            data = store.get_blob(use.blob)
            if data is not None and not self._archive.has_blob(use.blob):
                self._archive.put_blob(use.blob, data)
        self._archive.append(block, certificate)
        if self._scenario.ledger.keep_blocks:
            needed = max(self._scenario.ledger.keep_blocks, self._scenario.learning.gradient_every + 1)
            self._archive.prune(needed)

    def _recall_or_train(self, train: Train, replayed: Block) -> Train:
        """Return `train` that takes the models of the replayed block's round from the archive."""
        sent = {signed.update.client: signed.update for signed in replayed.body.updates}

        def recall_or_train(client: int, chain: ChainState, model: bytes) -> bytes | None:
            if chain.height < replayed.header.height and client in sent:
                data = None if sent[client].is_declined else self._archive.get_blob(sent[client].model)
                if data is not None or sent[client].is_declined:
                    return data
            return train(client, chain, model)  # if the block was empty, its updates were not stored

        return recall_or_train


def delivered_by(block: Block) -> PerClientMask:
    """Mask of clients with an update in the block that is not declined, (clients,).

    A client without data counts as delivering: it sends the parent's model with 0 samples.
    """
    mask = np.zeros(len(block.body.modelled.energy_pj), dtype=np.bool_)
    mask[[signed.update.client for signed in block.body.updates if not signed.update.is_declined]] = True
    return mask
