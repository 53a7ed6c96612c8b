"""A small federation whose every member is at hand: its keys, its statements, and blocks good or bad in one thing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from bdfl.encoding import INT_LIMIT, digest
from bdfl.environment import RoundState, draw_federation, draw_rounds
from bdfl.identity import Meaning, Signer
from bdfl.learning.participation import draw_participation
from bdfl.learning.weights import Layout, encode_weights
from bdfl.ledger.block import (
    FORMAT,
    Block,
    Body,
    Certificate,
    Conditions,
    Evidence,
    Genesis,
    Header,
    Kind,
    Law,
    Limits,
    Member,
    ModelForm,
    ModelUpdate,
    Physics,
    Receipt,
    Report,
    SchedulerName,
    Seal,
    SignedHeader,
    SignedReport,
    SignedUpdate,
    SignedVote,
    Tensor,
    Vote,
    body_root,
    header_seal,
)
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain import ChainState, apply_block, start_chain
from bdfl.ledger.costs import (
    ATTO,
    CAPACITANCE,
    MICROWATT,
    NANO,
    NOISE,
    ONE,
    PICOJOULE,
    count_capped,
    count_units,
)
from bdfl.ledger.genesis import conditions_of, make_genesis
from bdfl.ledger.proof_of_work import is_worked, search_nonce
from bdfl.ledger.rules import make_body, make_header
from bdfl.ledger.schedule import idle_schedule
from bdfl.scenario import Clients, Mining, QuorumRule, Scenario, SchedulerChoice, WorkKind
from bdfl.scheduling.problem import RoundProblem

LAYOUT = Layout(("w",), ((4,),))
ROUNDS = 12
BLOCK_MS = 5_000  # between two blocks' times
replace = msgspec.structs.replace


def small_scenario(count: int = 4, scheduler_name: str = "drc", **sections: object) -> Scenario:
    """A scenario with little work to mine; `sections` replace its own."""
    settings: dict[str, object] = {
        "rounds": ROUNDS,
        "clients": Clients(count=count, min_selected=2, samples=300),
        "scheduler": SchedulerChoice(name=scheduler_name),
        "mining": Mining(difficulty=3e7),
    }
    return Scenario(**(settings | sections))  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class SmallFederation:
    """Members with their keys, and the rounds that chance brings them."""

    genesis: Genesis
    signers: tuple[Signer, ...]
    rounds: tuple[RoundState, ...]
    initial_model: bytes
    cache: VerificationCache = field(default_factory=VerificationCache)

    @property
    def num_members(self) -> int:
        return len(self.signers)

    def start(self) -> ChainState:
        return start_chain(self.genesis, self.cache)

    def model(self, client: int, height: int, value: float | None = None) -> bytes:
        """What a client trained in a round, as bytes."""
        values = np.linspace(0.1, 1.0, 4) * (10 * height + client + 1 if value is None else value)
        return encode_weights(values.astype(np.float32), LAYOUT)

    def sign_update(self, state: ChainState, update: ModelUpdate, signer: int | None = None) -> SignedUpdate:
        key = self.signers[update.client if signer is None else signer]
        return SignedUpdate(update, key.sign(Meaning.UPDATE, state.place, update))

    def update(self, state: ChainState, client: int, data: bytes | None = None) -> SignedUpdate:
        data = self.model(client, state.height + 1) if data is None else data
        samples = self.genesis.members[client].limits.samples
        model = digest(data) if samples else state.model
        return self.sign_update(state, ModelUpdate(client, samples, len(data), model, 0))

    def declined(self, state: ChainState, client: int) -> SignedUpdate:
        samples = self.genesis.members[client].limits.samples
        return self.sign_update(state, ModelUpdate(client, samples, 0, b"", 0))

    def updates(self, state: ChainState, without: Iterable[int] = ()) -> list[SignedUpdate]:
        left_out = set(without)
        return [self.update(state, client) for client in state.schedule.selected if client not in left_out]

    def sign_report(self, state: ChainState, report: Report, signer: int | None = None) -> SignedReport:
        key = self.signers[report.client if signer is None else signer]
        return SignedReport(report, key.sign(Meaning.REPORT, state.place, report))

    def report(self, state: ChainState, client: int) -> SignedReport:
        round = state.height + 2
        receipt = Receipt(state.height, 1, 2, 3, 4) if state.height else None
        return self.sign_report(state, Report(client, round, conditions_of(self.rounds[round - 1], client), receipt))

    def reports(self, state: ChainState, without: Iterable[int] = ()) -> list[SignedReport]:
        left_out = set(without)
        return [self.report(state, client) for client in range(self.num_members) if client not in left_out]

    def blobs(self, state: ChainState) -> Mapping[bytes, bytes]:
        """All that anybody may have trained in the next round."""
        models = [self.model(client, state.height + 1) for client in range(self.num_members)]
        return {digest(data): data for data in models}

    def vote(self, state: ChainState, block: bytes, voter: int, **changes: object) -> SignedVote:
        vote = replace(Vote(Kind.PRECOMMIT, 1, block, voter, (0, 1), (0, 1), 5), **changes)
        return SignedVote(vote, self.signers[voter].sign(Meaning.VOTE, state.place, vote))

    def certificate(self, state: ChainState, block: bytes, **changes: object) -> Certificate:
        return tuple(self.vote(state, block, voter, **changes) for voter in range(state.quorum))

    def body(
        self,
        state: ChainState,
        certificate: Certificate = (),
        *,
        updates: Iterable[SignedUpdate] | None = None,
        reports: Iterable[SignedReport] | None = None,
        entries: Iterable[Evidence] = (),
        blobs: Mapping[bytes, bytes] | None = None,
    ) -> Body:
        return make_body(
            state,
            certificate=certificate,
            updates=list(self.updates(state) if updates is None else updates),
            reports=list(self.reports(state) if reports is None else reports),
            entries=list(entries),
            blobs=self.blobs(state) if blobs is None else blobs,
            cache=self.cache,
        )[0]

    def block(self, state: ChainState, body: Body, proposer: int = 0, attempt: int = 1, **header: object) -> Block:
        """A mined and signed block; `header` replaces what the law would write there."""
        made = make_header(state, attempt, proposer, body, state.times_ms[-1] + BLOCK_MS)
        return self.seal(replace(made, **header), body, proposer)

    def seal(self, header: Header, body: Body, signer: int, *, is_mined: bool = True) -> Block:
        """The block with that header and body, mined, or surely not mined, and signed."""
        seal, kind = header_seal(header), self.genesis.law.work
        nonce = search_nonce(kind, seal, header.difficulty)
        if not is_mined:
            nonces = (number.to_bytes(8, "big") for number in range(100))
            nonce = next(one for one in nonces if not is_worked(kind, seal, one, header.difficulty))
        assert nonce is not None
        signature = self.signers[signer].sign(Meaning.BLOCK, header.place, Seal(header, nonce))
        return Block(header, nonce, signature, body)

    def remade(self, block: Block, **body: object) -> Block:
        """The block with another body, mined and signed anew: only what the body says is changed."""
        changed = replace(block.body, **body)
        return self.seal(replace(block.header, body=body_root(changed)), changed, block.header.proposer)

    def signed_header(self, state: ChainState, body: Body, proposer: int, attempt: int = 1) -> SignedHeader:
        return self.block(state, body, proposer, attempt).signed_header

    def grow(self, state: ChainState, count: int, certificate: Certificate = ()) -> tuple[ChainState, Certificate]:
        """The chain after `count` more blocks that leave nothing out, and the votes for its tip."""
        for _ in range(count):
            block = self.block(state, self.body(state, certificate), proposer=state.height % self.num_members)
            certificate = self.certificate(state, block.digest)
            state = apply_block(state, block, self.cache)
        return state, certificate


def found_federation(
    scenario: Scenario | None = None, cache: VerificationCache | None = None, samples: Sequence[int] | None = None
) -> SmallFederation:
    """The federation of a scenario, with data sets of these sizes; keys are made of member numbers."""
    scenario = small_scenario() if scenario is None else scenario
    federation = draw_federation(scenario, None if samples is None else np.array(samples, dtype=np.float64))
    rounds = tuple(draw_rounds(scenario, federation))
    signers = tuple(Signer(bytes([number + 1]) * 32) for number in range(scenario.clients.count))
    initial_model = encode_weights(np.zeros(4, np.float32), LAYOUT)
    genesis = make_genesis(
        scenario,
        federation,
        draw_participation(scenario, federation),
        rounds[0],
        [signer.public_key for signer in signers],
        LAYOUT,
        initial_model,
    )
    return SmallFederation(genesis, signers, rounds, initial_model, VerificationCache() if cache is None else cache)


def genesis_of(problem: RoundProblem, scheduler: str = "drc") -> Genesis:
    """A genesis whose round 1 is that problem, as near as whole units come; nobody is scheduled in it."""

    def counts(values: NDArray[np.float64], per_one: int, least: int = 0) -> list[int]:
        return [max(least, min(count_units(value, per_one, "value"), INT_LIMIT)) for value in values.tolist()]

    def caps(values: NDArray[np.float64]) -> list[int | None]:
        return [count_capped(value, ONE, "cap") for value in values.tolist()]

    columns = zip(
        counts(problem.participation_rate, NANO),
        counts(problem.cycles, ONE),
        counts(problem.capacitance, CAPACITANCE, 1),
        counts(problem.power_w, MICROWATT),
        counts(problem.power_max_w, MICROWATT),
        counts(problem.model_bits, ONE, 1),
        caps(problem.cpu_max_hz),
        caps(problem.mining_max_hz),
        counts(problem.initial_cpu_hz, ONE, 1),
        counts(problem.initial_mining_hz, ONE, 1),
        counts(problem.gain, ATTO),
        counts(problem.energy_budget_j, PICOJOULE),
        problem.reachable.tolist(),
        strict=True,
    )
    members = [
        Member(Signer(bytes([number + 1]) * 32).public_key, Limits(300, *row[:10]), Conditions(*row[10:]))
        for number, row in enumerate(columns)
    ]
    return Genesis(
        format=FORMAT,
        name="drawn",
        time_ms=1,
        scenario=bytes(32),
        members=tuple(members),
        physics=Physics(
            min_clients=problem.min_clients,
            tradeoff_nano=count_units(problem.tradeoff, NANO, "V", least=1),
            work_cycles=count_units(problem.work_cycles, ONE, "A", least=1),
            bandwidth_hz=count_units(problem.bandwidth_hz, ONE, "B", least=1),
            noise=count_units(problem.noise_w_per_hz, NOISE, "N0", least=1),
            overhead_ns=count_units(problem.overhead_s, NANO, "overhead"),
        ),
        scheduler=SchedulerName(scheduler, "0", (), problem.seed),
        law=Law(QuorumRule.MAJORITY, WorkKind.SHA256, 1, 0, "mean", 0, 1, 3600 * 10**9),
        model=ModelForm(
            digest(encode_weights(np.zeros(4, np.float32), LAYOUT)),
            len(encode_weights(np.zeros(4, np.float32), LAYOUT)),
            (Tensor("w", (4,)),),
        ),
        schedule=idle_schedule(1, len(members), "not planned"),
        access_points=(),
        privacy=None,
    )
