"""Chains in form only: linked blocks with updates and models, enough to be stored; no rule was asked about them."""

from dataclasses import dataclass

import numpy as np

from bdfl.encoding import DIGEST_SIZE, SIGNATURE_SIZE, digest
from bdfl.ledger.block import (
    FORMAT,
    NONCE_SIZE,
    Block,
    Body,
    Certificate,
    Conditions,
    Genesis,
    Header,
    Kind,
    Law,
    Limits,
    Member,
    ModelForm,
    Modelled,
    ModelUpdate,
    Physics,
    Report,
    Schedule,
    SchedulerName,
    SignedReport,
    SignedUpdate,
    SignedVote,
    Tensor,
    Vote,
    body_root,
    chain_id,
)
from bdfl.scenario.schema_learning import QuorumRule, WorkKind

_SIGNATURE = bytes(SIGNATURE_SIZE)
_CONDITIONS = Conditions(gain_atto=1, energy_budget_pj=1, is_reachable=True)


@dataclass(frozen=True)
class Stage:
    """A block and what goes with it: the certificate, and bytes by digest of the updates and the model."""

    block: Block
    certificate: Certificate
    blobs: dict[bytes, bytes]


@dataclass(frozen=True)
class SampleChain:
    """Genesis, the untrained model and blocks."""

    genesis: Genesis
    initial_model: bytes
    stages: tuple[Stage, ...]


def sample_chain(num_blocks: int, *, num_members: int = 4, model_bytes: int = 64, seed: int = 0) -> SampleChain:
    """A chain where every member trains in every round; models are random bytes."""
    draw = np.random.default_rng(seed)
    initial_model = draw.bytes(model_bytes)
    genesis = sample_genesis(num_members, initial_model)
    parent = chain_id(genesis)
    stages: list[Stage] = []
    for height in range(1, num_blocks + 1):
        before = stages[-1].certificate if stages else ()
        stages.append(
            _stage(genesis, height, parent, before, [draw.bytes(model_bytes) for _ in range(num_members + 1)])
        )
        parent = stages[-1].block.digest
    return SampleChain(genesis, initial_model, tuple(stages))


def sample_genesis(num_members: int, initial_model: bytes) -> Genesis:
    """A genesis of so many members, all alike."""
    limits = Limits(
        samples=10,
        rate_nano=1,
        cycles=1,
        capacitance=1,
        power_uw=1,
        power_max_uw=1,
        model_bits=1,
        cpu_max_hz=None,
        mining_max_hz=None,
        initial_cpu_hz=1,
        initial_mining_hz=1,
    )
    keys = [digest(number.to_bytes(8, "big")) for number in range(num_members)]
    return Genesis(
        format=FORMAT,
        name="sample",
        time_ms=1,
        scenario=bytes(DIGEST_SIZE),
        members=tuple(Member(key, limits, _CONDITIONS) for key in keys),
        physics=Physics(1, 1, 1, 1, 1, 0),
        scheduler=SchedulerName("all", "0", (), 0),
        law=Law(QuorumRule.MAJORITY, WorkKind.SHA256, 1, 0, "mean", 0, 1, 3600 * 10**9),
        model=ModelForm(digest(initial_model), len(initial_model), (Tensor("w", (len(initial_model) // 4,)),)),
        schedule=_schedule(1, num_members),
        access_points=(),
        privacy=None,
    )


def sample_vote(height: int, attempt: int, block: bytes, voter: int, kind: Kind = Kind.PRECOMMIT) -> SignedVote:
    """A vote without a real signature; different for every height."""
    return SignedVote(Vote(kind, attempt, block, voter, (), (), height), _SIGNATURE)


def sample_report(height: int, client: int) -> SignedReport:
    """A report for the block of a height."""
    return SignedReport(Report(client, height + 1, _CONDITIONS, None), _SIGNATURE)


def _stage(genesis: Genesis, height: int, parent: bytes, before: Certificate, models: list[bytes]) -> Stage:
    *client_models, model = models
    num_members = len(client_models)
    updates = [ModelUpdate(client, 10, len(data), digest(data), 0) for client, data in enumerate(client_models)]
    body = Body(
        parent_certificate=before,
        schedule=_schedule(height, num_members),
        is_empty=False,
        model=digest(model),
        queue_nano=(height,) * num_members,
        modelled=Modelled(1, 1, 2, (1,) * num_members),
        reports=tuple(sample_report(height, client) for client in range(num_members)),
        next_schedule=_schedule(height + 1, num_members),
        entries=(),
        updates=tuple(SignedUpdate(update, _SIGNATURE) for update in updates),
    )
    header = Header(FORMAT, chain_id(genesis), height, 1, parent, height % num_members, body_root(body), 1, 1 + height)
    block = Block(header, bytes(NONCE_SIZE), _SIGNATURE, body)
    votes = [sample_vote(height, 1, block.digest, voter) for voter in range(num_members // 2 + 1)]
    return Stage(block, tuple(votes), {digest(data): data for data in models})


def _schedule(round: int, num_members: int) -> Schedule:
    everybody = tuple(range(num_members))
    ones = (1,) * num_members
    return Schedule(round, everybody, ones, ones, ones, 0, "")
