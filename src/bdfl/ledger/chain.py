"""The state of a chain after a block, by which the next block is judged, and its transition by a block."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np

from bdfl.aggregation import validate_arithmetic
from bdfl.encoding import DIGEST_SIZE, INT_LIMIT
from bdfl.identity import Place
from bdfl.learning.privacy_accounting import Mechanism, num_private_steps, spent_micro
from bdfl.learning.weights import Layout
from bdfl.ledger.block import (
    MAX_TIME_MS,
    Block,
    Certificate,
    Conditions,
    Entry,
    Genesis,
    Member,
    Modelled,
    Privacy,
    Schedule,
    SignedReport,
    SignedUpdate,
)
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain_params import ChainParams, amend_params
from bdfl.ledger.costs import NANO
from bdfl.ledger.genesis import first_prospect, validate_genesis
from bdfl.ledger.member_set import BINDS_AFTER, find_change, find_evidence, offender_of
from bdfl.ledger.schedule import Plan, Prospect, assess, find_candidates, plan_round, settle_conditions, settle_misses
from bdfl.scheduling.queues import next_queue

NO_PARENT = bytes(DIGEST_SIZE)  # parent of the genesis
MEDIAN_BLOCKS = 11  # median time past, as in Bitcoin: five false times cannot move it beyond the honest ones
FAREWELL = 64  # heights after its last one for which a removed member is answered, so that it learns of its removal


@dataclass(frozen=True, eq=False, kw_only=True)
class Settlement:
    """The per-member outcome of a round, derived from its block.

    Per-member tuples have an entry for every number assigned up to the height after the round.
    """

    conditions: Mapping[int, Conditions]  # of the round after, by client: members that reported and are no offenders
    queue_nano: tuple[int, ...]
    misses: tuple[int, ...]  # updates missed in a row
    rests_until: tuple[int, ...]  # last round of the member's back-off; 0: none
    offenders: frozenset[int]
    rounds_scheduled: tuple[int, ...]  # rounds the member was to train in: its update may be out, in a block or not
    epsilon_micro: tuple[int, ...]  # epsilon that the member last stated as spent; 0 where training is not private


@dataclass(frozen=True, eq=False, kw_only=True)
class ChainState(Settlement):
    """A chain at its tip, with the outcome of its last round."""

    params: ChainParams  # of the next height, height + 1
    tip_params: ChainParams  # of the tip's height, whose members voted for it
    coming_params: ChainParams  # of the height after the next: a change in the tip binds there
    height: int
    tip: bytes  # digest of the last block; the chain's id before block 1
    tip_parent: bytes  # of zeros before block 1
    model: bytes  # digest of the global model
    schedule: Schedule  # of the next round, height + 1
    difficulty: int  # of the tip, before attempts halved it
    times_ms: tuple[int, ...]  # of the last `MEDIAN_BLOCKS` blocks, oldest first; the genesis counts as one
    num_idle: int  # idle blocks in a row, up to the tip
    memory: object | None  # the scheduler's memory; recomputed by every node, never hashed

    @property
    def genesis(self) -> Genesis:
        return self.params.genesis

    @property
    def chain(self) -> bytes:
        return self.params.chain

    @property
    def num_members(self) -> int:
        """Numbers assigned up to the next height."""
        return self.params.num_members

    @property
    def members(self) -> tuple[Member, ...]:
        """All members by number: present, past and about to join."""
        return self.coming_params.members

    @property
    def active(self) -> frozenset[int]:
        """Members at the next height: they propose, vote, train and report."""
        return self.params.active

    @cached_property
    def reporters(self) -> frozenset[int]:
        """Members expected to report for the round after the next: they reported last time or are new, and stay."""
        newcomers = self.params.active - self.tip_params.active
        return (newcomers.union(self.conditions) & self.coming_params.active) - self.offenders

    @cached_property
    def due(self) -> frozenset[int]:
        """Members that owe something for the next block: an update of this round, or a report for the next."""
        return self.scheduled | self.reporters

    @cached_property
    def speakers(self) -> frozenset[int]:
        """Members of the next height or the one after, whose messages are accepted."""
        return self.params.active | self.coming_params.active

    @cached_property
    def public_keys(self) -> tuple[bytes | None, ...]:
        """Keys of members whose messages may be accepted, by number; none: removed at least `FAREWELL` heights ago."""
        member_set = self.coming_params.member_set
        return tuple(
            member.public_key if last is None or self.height < last + FAREWELL else None
            for member, last in zip(member_set.members, member_set.last_heights, strict=True)
        )

    def last_height(self, number: int) -> int | None:
        """The last height at which that number is, or was, a member; none: no removal is agreed on."""
        last_heights = self.coming_params.member_set.last_heights
        return last_heights[number] if 0 <= number < len(last_heights) else None

    def is_over(self, number: int) -> bool:
        """Return whether that member was removed."""
        last = self.last_height(number)
        return last is not None and last <= self.height

    @property
    def quorum(self) -> int:
        return self.params.quorum

    @property
    def layout(self) -> Layout:
        return self.params.layout

    @cached_property
    def place(self) -> Place:
        """The signing context of statements for the next block."""
        return Place(self.chain, self.height + 1, self.tip)

    @cached_property
    def tip_place(self) -> Place:
        """The signing context of the tip and the votes for it."""
        return Place(self.chain, self.height, self.tip_parent)

    @cached_property
    def candidates(self) -> Mapping[int, Conditions]:
        """Conditions of the clients eligible in the next round, by client."""
        min_clients = self.genesis.physics.min_clients
        return find_candidates(self.conditions, self.rests_until, self.height + 1, min_clients)

    @cached_property
    def least_time_ms(self) -> int:
        """Least time of the next block: 1 ms after the median time past, of an even number the earlier middle one.

        It is capped at the end of the calendar, so that no time can end a chain.
        """
        return min(sorted(self.times_ms)[(len(self.times_ms) - 1) // 2] + 1, MAX_TIME_MS)

    @cached_property
    def scheduled(self) -> frozenset[int]:
        """Clients that train in the next round."""
        return frozenset(self.schedule.selected)

    def is_resting(self, client: int) -> bool:
        """Return whether the member is in back-off in the next round."""
        return self.rests_until[client] > self.height


def start_chain(genesis: Genesis, cache: VerificationCache) -> ChainState:
    """The chain before its first block; raises `InvalidGenesis`, or `FlushesToZero` as `validate_arithmetic`."""
    validate_arithmetic()
    params = validate_genesis(genesis, cache)
    nothing = (0,) * params.num_members
    return ChainState(
        params=params,
        tip_params=params,
        coming_params=params,
        height=0,
        tip=params.chain,
        tip_parent=NO_PARENT,
        model=genesis.model.initial,
        schedule=genesis.schedule,
        conditions=MappingProxyType({client: member.conditions for client, member in enumerate(genesis.members)}),
        queue_nano=nothing,
        misses=nothing,
        rests_until=nothing,
        offenders=frozenset(),
        rounds_scheduled=nothing,
        epsilon_micro=nothing,
        difficulty=genesis.law.difficulty,
        times_ms=(genesis.time_ms,),
        num_idle=0,
        memory=plan_round(params, first_prospect(params), cache).decision.memory,
    )


def apply_block(state: ChainState, block: Block, cache: VerificationCache) -> ChainState:
    """The chain after one more block, which must have been validated."""
    body = block.body
    settled = settle_round(state, body.updates, body.reports, body.entries)
    return ChainState(
        params=state.coming_params,
        tip_params=state.params,
        coming_params=params_after(state, body.entries, cache),
        height=state.height + 1,
        tip=block.digest,
        tip_parent=state.tip,
        model=body.model,
        schedule=body.next_schedule,
        difficulty=_retarget(state, body.parent_certificate),
        times_ms=(*state.times_ms, block.header.time_ms)[-MEDIAN_BLOCKS:],
        num_idle=state.num_idle + 1 if is_idle(body.updates, body.entries) else 0,
        memory=plan_after(state, settled, cache).decision.memory,
        **vars(settled),
    )


def is_idle(updates: Sequence[SignedUpdate], entries: Sequence[Entry]) -> bool:
    """Return whether a block changes nothing: no trained update, no evidence and no change of membership."""
    is_nothing = (signed.update.is_declined or signed.update.samples == 0 for signed in updates)
    return not entries and all(is_nothing)


def params_after(state: ChainState, entries: Sequence[Entry], cache: VerificationCache) -> ChainParams:
    """The parameters that bind `BINDS_AFTER` heights after a next block with these entries; raises `BadChange`."""
    found = find_change(entries)
    if found is None:
        return state.coming_params
    return amend_params(state.coming_params, found.change, state.height + 1 + BINDS_AFTER, cache)


def settle_round(
    state: ChainState,
    updates: Sequence[SignedUpdate],
    reports: Sequence[SignedReport],
    entries: Sequence[Entry],
) -> Settlement:
    """Settle the next round for every member, if its block carries these updates, reports and entries.

    Members that join in the round after get entries of zeros. Removed members get no conditions, so that they are not
    scheduled again and their queues stand still.
    """
    offenders = state.offenders.union(map(offender_of, find_evidence(entries)))
    heard = {signed.update.client for signed in updates}
    misses, rests_until = settle_misses(
        state.schedule.selected, heard, state.misses, state.rests_until, state.height + 1
    )
    stated = {signed.update.client: signed.update.epsilon_micro for signed in updates}
    staying = state.coming_params.active
    newcomers = (0,) * (state.coming_params.num_members - state.num_members)
    return Settlement(
        conditions=settle_conditions(reports, staying, offenders),
        queue_nano=_settle_queues(state, [signed.update.client for signed in updates if not signed.update.is_declined])
        + newcomers,
        misses=misses + newcomers,
        rests_until=rests_until + newcomers,
        offenders=offenders,
        rounds_scheduled=tuple(
            count + (client in state.scheduled) for client, count in enumerate(state.rounds_scheduled)
        )
        + newcomers,
        epsilon_micro=tuple(stated.get(client, last) for client, last in enumerate(state.epsilon_micro)) + newcomers,
    )


def _settle_queues(state: ChainState, took_part: Sequence[int]) -> tuple[int, ...]:
    """Queues after the round; those of members that did not report for it, or were in back-off, stand still."""
    participated = np.zeros(state.num_members, dtype=np.int64)
    participated[list(took_part)] = NANO
    grown = next_queue(
        np.array(state.queue_nano, dtype=np.int64), np.array(state.params.rate_nano, dtype=np.int64), participated
    )
    return tuple(
        after if client in state.conditions and not state.is_resting(client) else before
        for client, (before, after) in enumerate(zip(state.queue_nano, grown.tolist(), strict=True))
    )


def prospect_after(state: ChainState, settled: Settlement) -> Prospect:
    """The scheduler's input for the round after the next one, once the next one is settled so.

    The scheduler's memory is reset when the members change.
    """
    round = state.height + 2
    is_same = state.coming_params is state.params or state.coming_params.name == state.params.name
    return Prospect(
        parent=state.tip,
        round=round,
        queue_nano=settled.queue_nano,
        candidates=find_candidates(settled.conditions, settled.rests_until, round, state.genesis.physics.min_clients),
        memory=state.memory if is_same else None,
    )


def plan_after(state: ChainState, settled: Settlement, cache: VerificationCache) -> Plan:
    """The plan for the round after the next one by the chain's scheduler."""
    return plan_round(state.coming_params, prospect_after(state, settled), cache)


def modelled_costs(state: ChainState, cache: VerificationCache) -> Modelled:
    """Modelled costs of the next round, played as scheduled."""
    prospect = Prospect(state.tip, state.height + 1, state.queue_nano, state.candidates, None)
    return assess(state.params, prospect, state.schedule, cache).modelled


def required_difficulty(state: ChainState, attempt: int, certificate: Certificate) -> int:
    """Expected hashes for a block of that attempt that carries this certificate of its parent; at least 1.

    Retargeted by the waits of the parent's voters, and halved in every attempt after the first.
    """
    return max(1, _retarget(state, certificate) >> (attempt - 1))


def _retarget(state: ChainState, certificate: Certificate) -> int:
    """Difficulty before attempts: the last one times target / median wait of the voters, at most doubled or halved.

    Of an even number of voters the shorter of the middle two waits counts. A voter that was still collecting when the
    block arrived signs 0, which counts as the target and changes nothing. Byzantine voters are too few to move the
    median beyond the waits of honest ones.
    """
    target_ms = state.genesis.law.target_ms
    if target_ms == 0 or not certificate:
        return state.difficulty
    waits_ms = sorted(signed.vote.mining_ms or target_ms for signed in certificate)
    median_ms = waits_ms[(len(waits_ms) - 1) // 2]
    wanted = state.difficulty * target_ms // median_ms
    least, most = (state.difficulty + 1) // 2, 2 * state.difficulty
    return min(max(wanted, least), most, INT_LIMIT)


# Epsilon spent by the members of a private chain: no part of the validity rules, since the accountant needs Opacus.


def mechanism_on(privacy: Privacy, samples: int) -> Mechanism:
    """The privacy mechanism of a member with `samples` samples on this chain."""
    return Mechanism(
        noise_micro=privacy.noise_micro,
        batch=privacy.batch,
        samples=samples,
        steps=num_private_steps(privacy.unit, privacy.steps, privacy.batch, samples),
        delta_atto=privacy.delta_atto,
        accountant=privacy.accountant,
    )


def spent_after(chain: ChainState, client: int) -> int:
    """Epsilon of a client after training the next round, in 1e-6; 0 where training is not private.

    Every round that it was scheduled in counts, in a block or not: its model may have been sent.
    """
    privacy = chain.genesis.privacy
    if privacy is None:
        return 0
    samples = chain.params.members[client].limits.samples
    return spent_micro(mechanism_on(privacy, samples), chain.rounds_scheduled[client] + 1)
