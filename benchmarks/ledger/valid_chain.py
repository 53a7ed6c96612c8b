"""Chains that keep every rule, made block by block without a network: for tests, golden vectors and benchmarks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from bdfl.encoding import digest
from bdfl.identity import Meaning, Signer
from bdfl.learning.weights import Layout, Vector, encode_weights
from bdfl.ledger.block import (
    FORMAT,
    AccessPoint,
    Block,
    Body,
    Certificate,
    Conditions,
    Entry,
    Genesis,
    Header,
    Kind,
    Law,
    Limits,
    Member,
    ModelForm,
    ModelUpdate,
    Physics,
    Privacy,
    Receipt,
    Report,
    Schedule,
    SchedulerName,
    Seal,
    SignedReport,
    SignedUpdate,
    SignedVote,
    Tensor,
    Vote,
    header_seal,
)
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain import ChainState, apply_block, prospect_after, settle_round, start_chain
from bdfl.ledger.chain_params import ChainParams, read_params
from bdfl.ledger.genesis import first_prospect
from bdfl.ledger.proof_of_work import search_nonce
from bdfl.ledger.rules import make_body, make_header
from bdfl.ledger.schedule import Prospect, assess, idle_schedule, plan_round
from bdfl.ledger.store import Store
from bdfl.scenario.schema_learning import QuorumRule, WorkKind

CONDITIONS = Conditions(gain_atto=10**13, energy_budget_pj=5 * 10**12, is_reachable=True)
SMALL = Layout(("bias", "weight"), ((2,), (2, 3)))
_FOUNDED_MS = 1_767_225_600_000
_BLOCK_MS = 5_000  # between two blocks' times
_EXAMPLE_LAW = Law(QuorumRule.MAJORITY, WorkKind.SHA256, 16, 0, "mean", 0, 1, 3600 * 10**9)
_EXAMPLE_PHYSICS = Physics(
    min_clients=1,
    tradeoff_nano=10**9,
    work_cycles=3 * 10**9,
    bandwidth_hz=10**6,
    noise=4 * 10**9,
    overhead_ns=0,
)

Plan = Callable[[ChainParams, Prospect, VerificationCache], Schedule]
Change = Callable[[Body], Body]


def example_signer(number: int) -> Signer:
    """A key that everybody knows: of 32 equal bytes."""
    return Signer(bytes([number + 1]) * 32)


def example_limits(samples: int) -> Limits:
    """A client's processor, radio and data."""
    return Limits(
        samples=samples,
        rate_nano=500_000_000,
        cycles=samples * 10**6,
        capacitance=2 * 10**8,
        power_uw=200_000,
        power_max_uw=200_000,
        model_bits=3_000_000,
        cpu_max_hz=None,
        mining_max_hz=None,
        initial_cpu_hz=10**9,
        initial_mining_hz=10**9,
    )


def plan_by_scheduler(params: ChainParams, prospect: Prospect, cache: VerificationCache) -> Schedule:
    """The schedule of the chain's own scheduler."""
    return plan_round(params, prospect, cache).schedule


def plan_by_hand(params: ChainParams, prospect: Prospect, cache: VerificationCache) -> Schedule:
    """All candidates train and mine at round numbers: the same on every machine, which no solver promises."""
    clients = tuple(prospect.candidates)
    if not clients:
        return idle_schedule(prospect.round, params.num_members, "nobody is there")
    mining_hz = tuple(10**9 if client in prospect.candidates else 0 for client in range(params.num_members))
    power_uw = tuple(params.members[client].limits.power_uw for client in clients)
    draft = Schedule(prospect.round, clients, (800_000_000,) * len(clients), power_uw, mining_hz, 0, "")
    assessment = assess(params, prospect, draft, cache)
    assert not assessment.breaches, assessment.breaches
    return msgspec.structs.replace(draft, objective_nano=assessment.objective_nano)


def example_genesis(
    initial_model: bytes,
    *,
    samples: Sequence[int] = (100, 200, 300, 400),
    layout: Layout = SMALL,
    law: Law = _EXAMPLE_LAW,
    physics: Physics = _EXAMPLE_PHYSICS,
    scheduler: str = "all",
    plan: Plan = plan_by_scheduler,
    privacy: Privacy | None = None,
) -> Genesis:
    """A genesis of as many members as there are sample counts."""
    members = tuple(
        Member(example_signer(number).public_key, example_limits(count), CONDITIONS)
        for number, count in enumerate(samples)
    )
    draft = Genesis(
        format=FORMAT,
        name="example",
        time_ms=_FOUNDED_MS,
        scenario=digest(b"no scenario"),
        members=members,
        physics=physics,
        scheduler=SchedulerName(scheduler, "0", (), 0),
        law=law,
        model=ModelForm(digest(initial_model), len(initial_model), tuple(map(Tensor, layout.names, layout.shapes))),
        schedule=idle_schedule(1, len(members), "not planned yet"),
        access_points=(AccessPoint("ap-0", digest(b"no certificate")),),
        privacy=privacy,
    )
    cache = VerificationCache()
    params = read_params(draft, cache)
    return msgspec.structs.replace(draft, schedule=plan(params, first_prospect(params), cache))


def example_weights(number: int, layout: Layout = SMALL) -> Vector:
    """Weights that differ in every bit, the same on every machine: quotients of whole numbers."""
    parameters = np.arange(1, layout.num_parameters + 1, dtype=np.float64)
    return np.asarray((parameters * (2 * number + 1) - 7 * number) / (3 * number + 11), dtype=np.float32)


@dataclass(eq=False)
class ChainMaker:
    """A chain that grows in a store, and all its members' keys."""

    store: Store
    signers: Sequence[Signer]
    plan: Plan = plan_by_scheduler
    cache: VerificationCache = field(default_factory=VerificationCache)
    state: ChainState = field(init=False)
    certificate: Certificate = ()  # of the tip

    def __post_init__(self) -> None:
        self.state = start_chain(self.store.genesis, self.cache)

    def sign_update(self, client: int, weights: Vector | None) -> SignedUpdate:
        """The client's update of the next round, its bytes stored; without weights it has nothing to give."""
        samples = self.state.members[client].limits.samples
        if weights is None:
            update = ModelUpdate(client, samples, 0, b"", self._spent_micro(client))
        elif samples == 0:
            update = ModelUpdate(client, 0, self.state.genesis.model.size, self.state.model, 0)
        else:
            data = encode_weights(weights, self.state.layout)
            self.store.put_blob(self.cache.digest(data), data)
            update = ModelUpdate(client, samples, len(data), self.cache.digest(data), self._spent_micro(client))
        return self.sign(update)

    def sign(self, update: ModelUpdate) -> SignedUpdate:
        """An update of the next round, signed by its client."""
        return SignedUpdate(update, self.signers[update.client].sign(Meaning.UPDATE, self.state.place, update))

    def _spent_micro(self, client: int) -> int:
        """Some epsilon that grows with every round, where the chain is private."""
        is_private = self.state.genesis.privacy is not None and self.state.members[client].limits.samples > 0
        return 250_000 * (1 + self.state.rounds_scheduled[client]) if is_private else 0

    def sign_report(
        self, client: int, conditions: Conditions = CONDITIONS, receipt: Receipt | None = None
    ) -> SignedReport:
        """The client's report for the round after the next one."""
        report = Report(client, self.state.height + 2, conditions, receipt)
        return SignedReport(report, self.signers[client].sign(Meaning.REPORT, self.state.place, report))

    def sign_vote(
        self, voter: int, block: bytes, *, kind: Kind = Kind.PRECOMMIT, attempt: int = 1, mining_ms: int = 0
    ) -> SignedVote:
        """A member's vote for a block at the next height."""
        everybody = tuple(sorted(self.state.active))
        vote = Vote(kind, attempt, block, voter, everybody, everybody, mining_ms)
        return SignedVote(vote, self.signers[voter].sign(Meaning.VOTE, self.state.place, vote))

    def make_block(
        self,
        updates: Sequence[SignedUpdate],
        reports: Sequence[SignedReport],
        *,
        entries: Sequence[Entry] = (),
        attempt: int = 1,
        proposer: int = 0,
        change: Change | None = None,
    ) -> Block:
        """The next block, mined and signed; `change` may make it wrong."""
        wanted = {self.state.model, *(signed.update.model for signed in updates)}
        blobs = {blob: data for blob in wanted if (data := self.store.get_blob(blob)) is not None}
        body, model = make_body(
            self.state,
            certificate=self.certificate,
            updates=updates,
            reports=reports,
            entries=entries,
            blobs=blobs,
            cache=self.cache,
        )
        if model:
            self.store.put_blob(body.model, model)
        settled = settle_round(self.state, body.updates, body.reports, body.entries)
        planned = self.plan(self.state.coming_params, prospect_after(self.state, settled), self.cache)
        body = msgspec.structs.replace(body, next_schedule=planned)
        body = body if change is None else change(body)
        return self.seal(make_header(self.state, attempt, proposer, body, self.state.times_ms[-1] + _BLOCK_MS), body)

    def seal(self, header: Header, body: Body) -> Block:
        """A block of this header and body with the first nonce that serves."""
        nonce = search_nonce(self.state.genesis.law.work, header_seal(header), header.difficulty)
        assert nonce is not None
        signature = self.signers[header.proposer].sign(Meaning.BLOCK, header.place, Seal(header, nonce))
        return Block(header, nonce, signature, body)

    def commit(self, block: Block, *, voters: Sequence[int] | None = None, mining_ms: int = 0) -> None:
        """Votes for the block (all members unless given) and stores it, valid or not."""
        who = sorted(self.state.active) if voters is None else voters
        attempt = block.header.attempt
        name = block.digest
        self.certificate = tuple(
            self.sign_vote(voter, name, attempt=attempt, mining_ms=mining_ms + voter) for voter in who
        )
        self.store.append(block, self.certificate)
        self.state = apply_block(self.state, block, self.cache)

    def grow(self, num_blocks: int, weights_of: Callable[[int, int], Vector] | None = None) -> None:
        """Adds blocks in which everybody who is scheduled trains and everybody reports, proposers taking turns.

        `weights_of` gives a client's model in a round, called with (client, round).
        """
        for _ in range(num_blocks):
            members = sorted(self.state.active)
            round = self.state.height + 1
            updates = [
                self.sign_update(client, (weights_of or _example_weights_of(self.state.layout))(client, round))
                for client in self.state.schedule.selected
            ]
            reports = [self.sign_report(client) for client in members]
            self.commit(self.make_block(updates, reports, proposer=members[round % len(members)]))


def _example_weights_of(layout: Layout) -> Callable[[int, int], Vector]:
    return lambda client, round: example_weights(17 * round + client, layout)
