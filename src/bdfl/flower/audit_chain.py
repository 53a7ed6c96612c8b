"""Audit chain of a server: blocks valid by the rules of a network, with all keys held by the server.

Flower clients do not sign. So the server signs every statement in their name: reports of the scenario's draws, updates
with the digests of the models received, and all votes. Verification of such a chain proves that its contents follow
from the genesis and are unchanged. The server alone vouches that the updates are the clients' own.
"""

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from bdfl.errors import BdflError
from bdfl.experiment.network_run import drawn_conditions, member_keys, run_genesis, run_toolbox
from bdfl.experiment.simulation import Draws
from bdfl.identity import Meaning, Signer
from bdfl.learning.weights import Layout, Vector, decode_weights, encode_weights
from bdfl.ledger.block import (
    Block,
    Certificate,
    Kind,
    ModelUpdate,
    Report,
    Seal,
    SignedReport,
    SignedUpdate,
    SignedVote,
    Vote,
    header_seal,
)
from bdfl.ledger.chain import apply_block, start_chain
from bdfl.ledger.chain_params import read_decision, weights_file
from bdfl.ledger.genesis import SIMULATED_TIME_MS
from bdfl.ledger.proof_of_work import search_nonce
from bdfl.ledger.rules import make_body, make_header
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.ledger.store import rested_on
from bdfl.scenario import Scenario
from bdfl.scheduling.problem import Decision
from bdfl.transports.cost_model import ScenarioTimes

LEAST_SECRET = 16  # bytes
_ATTEMPT = 1  # there is no disagreement


class WeakSecret(BdflError):
    """A secret that is too short."""


def server_keys(scenario: Scenario, secret: bytes | None) -> list[Signer]:
    """Return a key for every client, all held by the server and derived from its secret.

    Without a secret they are those of a simulation, derived from the public seed; the chain then has the same bytes
    every time.
    """
    if secret is None:
        return member_keys(scenario)
    if len(secret) < LEAST_SECRET:
        raise WeakSecret(f"secret: {len(secret)} bytes given, at least {LEAST_SECRET} expected")
    return [
        Signer(hashlib.sha256(f"bdfl server member {number} ".encode() + secret).digest())
        for number in range(scenario.clients.count)
    ]


class ServerChain:
    """A chain in a folder, one block per round. It must be closed."""

    def __init__(
        self,
        scenario: Scenario,
        draws: Draws,
        signers: Sequence[Signer],
        path: Path,
        layout: Layout,
        initial_weights: Vector,
        *,
        is_simulated: bool,
    ) -> None:
        """A simulated chain is reproducible to the byte: its clock follows the cost model, as in a simulation."""
        self._is_simulated = is_simulated
        self._scenario = scenario
        self._signers = signers
        initial = encode_weights(initial_weights, layout)
        time_ms = SIMULATED_TIME_MS if is_simulated else _read_wall_clock()
        genesis = run_genesis(scenario, draws, layout, initial, signers, time_ms)
        self._cache = run_toolbox(scenario, len(initial))
        self._state = start_chain(genesis, self._cache)
        self._certificate: Certificate = ()  # of the tip
        self._tip: Block | None = None
        self._times = ScenarioTimes(scenario, partial(drawn_conditions, draws))
        self._store = ChainStore.create(path, genesis, initial)
        self._model = initial  # the global model, with its moments

    @property
    def selected(self) -> tuple[int, ...]:
        """Clients that train in the next round, ascending."""
        return self._state.schedule.selected

    @property
    def decision(self) -> Decision:
        """The schedule of the next round, in floats."""
        return read_decision(self._state.schedule)

    def append(self, trained: Mapping[int, Vector]) -> Vector | None:
        """Append a block with these clients' models and return the next model; None if there are too few.

        Scheduled clients without a model are recorded as declined.
        """
        state = self._state
        models = {client: encode_weights(weights, state.layout) for client, weights in trained.items()}
        blobs = {self._cache.digest(data): data for data in models.values()}
        body, model = make_body(
            state,
            certificate=self._certificate,
            updates=[self._sign_update(client, models.get(client)) for client in state.schedule.selected],
            reports=list(self._sign_reports()),
            entries=(),
            blobs=blobs | {state.model: self._model},
            cache=self._cache,
        )
        modelled_ms = state.times_ms[-1] + body.modelled.delay_ns // 1_000_000
        now_ms = modelled_ms if self._is_simulated else _read_wall_clock()
        # The client that finds the block first by the cost model and the seed's draws.
        proposer = min(range(len(self._signers)), key=lambda client: self._times.finding_ns(client, state, _ATTEMPT))
        header = make_header(state, _ATTEMPT, proposer, body, now_ms)
        nonce = search_nonce(state.genesis.law.work, header_seal(header), header.difficulty)
        if nonce is None:
            raise RuntimeError(f"block {header.height}: no nonce is low enough")
        signature = self._signers[header.proposer].sign(Meaning.BLOCK, header.place, Seal(header, nonce))
        block = Block(header, nonce, signature, body)
        certificate = tuple(self._sign_vote(block, voter) for voter in range(state.num_members))
        self._keep(block, certificate, blobs | {body.model: model} if model else blobs)
        self._state = apply_block(state, block, self._cache)
        self._certificate, self._tip = certificate, block
        self._model = model or self._model
        return decode_weights(weights_file(state.genesis, model), state.layout) if model else None

    def close(self) -> None:
        self._store.close()

    def _sign_update(self, client: int, data: bytes | None) -> SignedUpdate:
        state = self._state
        samples = state.params.members[client].limits.samples
        if data is None:
            update = ModelUpdate(client, samples, 0, b"", 0)
        else:  # a client without data sends the parent's model
            model = self._cache.digest(data) if samples else state.model
            update = ModelUpdate(client, samples, len(data), model, 0)
        return SignedUpdate(update, self._signers[client].sign(Meaning.UPDATE, state.place, update))

    def _sign_reports(self) -> Iterator[SignedReport]:
        """Yield the clients' conditions in the next round and costs of the last one; nothing after the last round."""
        state = self._state
        for client, signer in enumerate(self._signers):
            found = self._times.measure(client, state, self._tip)
            if found is not None:
                report = Report(client, state.height + 2, *found)
                yield SignedReport(report, signer.sign(Meaning.REPORT, state.place, report))

    def _sign_vote(self, block: Block, voter: int) -> SignedVote:
        body = block.body
        vote = Vote(
            kind=Kind.PRECOMMIT,
            attempt=_ATTEMPT,
            block=block.digest,
            voter=voter,
            updates=tuple(signed.update.client for signed in body.updates),
            reports=tuple(signed.report.client for signed in body.reports),
            mining_ms=0,
        )
        return SignedVote(vote, self._signers[voter].sign(Meaning.VOTE, self._state.place, vote))

    def _keep(self, block: Block, certificate: Certificate, blobs: Mapping[bytes, bytes]) -> None:
        with self._store.batch():
            for use in rested_on(block):
                if use.blob in blobs:
                    self._store.put_blob(use.blob, blobs[use.blob])
            self._store.append(block, certificate)
        if self._scenario.ledger.keep_blocks:
            self._store.prune(self._scenario.ledger.keep_blocks)


def _read_wall_clock() -> int:
    return int(time.time() * 1000)
