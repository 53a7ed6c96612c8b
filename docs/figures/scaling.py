"""Committees and aggregation trees: risk, traffic and exchange time of federations too large for all to vote.

A study for docs/scale.md, from the encodings and the cost model themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from bdfl.compute import training_time
from bdfl.encoding import DIGEST_SIZE, SIGNATURE_SIZE, Digest, Record, Whole, encode, record_digest
from bdfl.environment import draw_federation, draw_rounds
from bdfl.ledger.block import (
    NONCE_SIZE,
    Block,
    Body,
    Conditions,
    Header,
    Kind,
    Modelled,
    ModelUpdate,
    Receipt,
    Report,
    Schedule,
    SignedReport,
    SignedUpdate,
    SignedVote,
    Vote,
)
from bdfl.ledger.member_set import quorum_size
from bdfl.protocol.consensus import MAX_CERTIFIED
from bdfl.protocol.messages import Content, Gossip, Message, Proposal
from bdfl.radio import uplink_rate, upload_time
from bdfl.scenario import Scenario
from bdfl.scenario.schema_learning import QuorumRule
from bdfl.types import PerClient

_DOMAIN = "bdfl/lot/1"


class _Ticket(Record, frozen=True):
    domain: str
    tip: Digest
    member: Whole


def draw_committee(tip: bytes, members: Sequence[int], size: int) -> list[int]:
    """The members, ascending, who vote on the block after `tip`: those with the `size` lowest tickets.

    A ticket is a digest of the tip and the member's number, so that everybody who knows the chain knows the committee
    and needs no proof. It is known as soon as the tip is; whoever mines the tip can throw a block away, and with it a
    committee, for the price of another proof of work.
    """
    tickets = sorted((record_digest(_Ticket(_DOMAIN, tip, member)), member) for member in members)
    return sorted(member for _, member in tickets[:size])


def tail_probability(population: int, marked: int, drawn: int, least: int) -> float:
    """Probability that at least `least` of those drawn are marked, each set of `drawn` being equally likely.

    The hypergeometric tail: the sum over x >= least of C(marked, x) C(population - marked, drawn - x) /
    C(population, drawn), in logarithms.
    """
    fewest, most = max(0, drawn - (population - marked)), min(marked, drawn)
    if least <= fewest:
        return 1.0
    if least > most:
        return 0.0
    count = np.arange(least, most + 1, dtype=np.float64)
    logs = _log_choose(marked, count) + _log_choose(population - marked, drawn - count)
    return min(float(np.exp(logsumexp(logs) - _log_choose(population, np.array([float(drawn)]))[0])), 1.0)


def _log_choose(total: int, chosen: NDArray[np.float64]) -> NDArray[np.float64]:
    ways: NDArray[np.float64] = gammaln(total + 1.0) - gammaln(chosen + 1.0) - gammaln(total - chosen + 1.0)
    return ways


def breaking_liars(committee: int, rule: QuorumRule) -> int:
    """The fewest members of a committee that can keep it from deciding or, under `bft`, make it decide two blocks.

    By silence: as many as a quorum leaves over, and one. By lying: as many as two quorums have in common. `majority`
    promises nothing where members lie, so only those who are silent count.
    """
    quorum = quorum_size(rule, committee)
    silent = committee - quorum + 1
    return silent if rule is QuorumRule.MAJORITY else min(silent, 2 * quorum - committee)


def committee_risk(members: int, liars: int, committee: int, rule: QuorumRule) -> float:
    """Probability that a committee drawn by lot has enough liars to break it."""
    return tail_probability(members, liars, committee, breaking_liars(committee, rule))


def least_committee(members: int, liars: int, risk: float, rule: QuorumRule) -> int | None:
    """The smallest committee that is broken with at most this probability; none if not even all members are safe."""
    return next(
        (size for size in range(1, members + 1) if committee_risk(members, liars, size, rule) <= risk),
        None,
    )


WIDE = 2.0  # a sum that any order of adding leaves the same takes 8 bytes a weight, a model 4


@dataclass(frozen=True)
class Exchange:
    """How long it takes until everybody has the global model, and what it asks of the busiest member."""

    delay_s: float
    most_received_bits: float
    most_held_bits: float  # at one time, to do its part
    audit_bits: float  # to be received for checking one aggregation by doing it again


def exchange_all(training_s: PerClient, rate_bit_per_s: PerClient, model_bits: float) -> Exchange:
    """All to all, as the protocol has it: everybody uploads, receives every other's model and aggregates itself."""
    others = len(training_s) - 1
    model_s = upload_time(np.full_like(rate_bit_per_s, model_bits), rate_bit_per_s)
    delay_s = float(np.max(training_s + model_s) + others * np.max(model_s))
    return Exchange(delay_s, others * model_bits, (others + 1) * model_bits, others * model_bits)


def exchange_tree(training_s: PerClient, rate_bit_per_s: PerClient, model_bits: float, fan_out: int) -> Exchange:
    """In a tree: sums move up a level at a time, then everybody receives the root's model.

    A member waits for its slowest child, receives its children's sums one after the other, adds its own and sends one
    sum. The fastest links are nearest the root, where most is carried.
    """
    order = np.argsort(-rate_bit_per_s, kind="stable")
    trained_s, rate = training_s[order], rate_bit_per_s[order]
    sum_s = upload_time(np.full_like(rate, WIDE * model_bits), rate)
    num_children = count_children(len(rate), fan_out)
    sent_s = np.zeros(len(rate))
    for first, last in reversed(find_levels(len(rate), fan_out)):
        level = np.arange(first, last)
        waited_s = trained_s[level]
        for child in range(1, fan_out + 1):
            number = fan_out * level + child
            there = number < len(rate)
            waited_s[there] = np.maximum(waited_s[there], sent_s[number[there]])
        sent_s[level] = waited_s + (num_children[level] + 1) * sum_s[level]
    root_s = sent_s[0] - sum_s[0]  # the root sends a model, not a sum
    model_s = sum_s / WIDE
    most = int(num_children.max(initial=0))
    return Exchange(
        delay_s=float(root_s + model_s[0] + np.max(model_s)),
        most_received_bits=(WIDE * most + 1) * model_bits,
        most_held_bits=2 * WIDE * model_bits,  # the sum so far and the one being added
        audit_bits=(WIDE * (most + 1) + 1) * model_bits,  # the children's sums, its own model, and the sum it gave
    )


def count_children(members: int, fan_out: int) -> NDArray[np.int64]:
    """How many children each member of a tree has, (members,)."""
    first = fan_out * np.arange(members) + 1
    return np.clip(members - first, 0, fan_out)


def find_levels(members: int, fan_out: int) -> list[tuple[int, int]]:
    """First member and the one after the last of every level, from the root down."""
    levels, first, last = [], 0, 1
    while first < members:
        levels.append((first, min(last, members)))
        first, last = last, fan_out * last + 1
    return levels


def missed_audit_probability(inner_members: int, auditors: int, audits: int) -> float:
    """Probability that a false aggregation is checked by nobody.

    Each of the honest `auditors` draws `audits` different ones of the inner members by itself: (1 - a / I)^h.
    """
    return max(1.0 - audits / inner_members, 0.0) ** auditors


_DIGEST = b"\xff" * DIGEST_SIZE
_SIGNATURE = b"\xff" * SIGNATURE_SIZE
_ROUND = 2**15 - 1
_LARGE = 2**40  # nanoseconds, picojoules, hertz, attounits: numbers of nine bytes
_MS = 2**15 - 1


@dataclass(frozen=True)
class Heard:
    """What one member receives in a round, by what it is about."""

    report_bytes: int
    update_bytes: int  # announcements, and the models themselves
    block_bytes: int
    vote_bytes: int
    num_messages: int
    num_signatures: int  # to be verified

    @property
    def num_bytes(self) -> int:
        return self.report_bytes + self.update_bytes + self.block_bytes + self.vote_bytes


def heard_in_round(
    members: int, selected: int, model_bytes: int, *, voters: int | None = None, rule: QuorumRule = QuorumRule.BFT
) -> Heard:
    """What a member that is neither selected nor votes hears: reports of all, updates, one block, and both votes.

    `voters` are those of a committee; none: all members vote.
    """
    voting = members if voters is None else voters
    report, update, vote = _report(members), _update(members, model_bytes), _vote(members, selected)
    block = _block(members, selected, model_bytes, _num_certified(voting, rule))
    return Heard(
        report_bytes=(members - 1) * _size(Gossip(1, reports=(report,))),
        update_bytes=selected * (_size(Gossip(1, updates=(update,))) + model_bytes),
        block_bytes=_size(Proposal(block)),
        vote_bytes=2 * voting * _size(Gossip(1, votes=(vote,))),
        num_messages=members - 1 + 2 * selected + 1 + 2 * voting,
        num_signatures=members - 1 + selected + 1 + 2 * voting,  # those of the block's parts were heard before
    )


def block_size(members: int, selected: int, *, voters: int | None = None, rule: QuorumRule = QuorumRule.BFT) -> int:
    """Bytes of a block: most of it is the parent's certificate, whose every vote lists whose reports its voter held."""
    voting = members if voters is None else voters
    return len(encode(_block(members, selected, 1, _num_certified(voting, rule))))


def _num_certified(voting: int, rule: QuorumRule) -> int:
    """Votes in a certificate: all that arrive, or a quorum where these are too many for a block."""
    return max(quorum_size(rule, voting), min(voting, MAX_CERTIFIED))


def _size(content: Content) -> int:
    return len(encode(Message(_DIGEST, 0, _ROUND, content)))


def _report(members: int) -> SignedReport:
    receipt = Receipt(_ROUND, _LARGE, _LARGE, _LARGE, _LARGE)
    return SignedReport(Report(members - 1, _ROUND, Conditions(_LARGE, _LARGE, True), receipt), _SIGNATURE)


def _update(members: int, model_bytes: int) -> SignedUpdate:
    return SignedUpdate(ModelUpdate(members - 1, 2**15, model_bytes, _DIGEST, 0), _SIGNATURE)


def _vote(members: int, selected: int) -> SignedVote:
    trained = tuple(range(0, members, max(members // max(selected, 1), 1)))[:selected]
    vote = Vote(Kind.PRECOMMIT, 1, _DIGEST, members - 1, trained, tuple(range(members)), _MS)
    return SignedVote(vote, _SIGNATURE)


def _block(members: int, selected: int, model_bytes: int, certified: int) -> Block:
    each, trained = (_LARGE,) * members, tuple(range(selected))
    schedule = Schedule(_ROUND, trained, each[:selected], (2**17,) * selected, each, _LARGE, "")
    body = Body(
        parent_certificate=(_vote(members, selected),) * certified,
        schedule=schedule,
        is_empty=False,
        model=_DIGEST,
        queue_nano=each,
        modelled=Modelled(_LARGE, _LARGE, _LARGE, each),
        reports=(_report(members),) * members,
        next_schedule=schedule,
        entries=(),
        updates=(_update(members, model_bytes),) * selected,
    )
    header = Header(1, _DIGEST, _ROUND, 1, _DIGEST, members - 1, _DIGEST, _LARGE, _LARGE)
    return Block(header, b"\xff" * NONCE_SIZE, _SIGNATURE, body)


@dataclass(frozen=True)
class CommitteePoint:
    """How large a committee must be."""

    members: int
    liar_share: float
    rule: QuorumRule
    risk: float
    size: int | None  # none: nothing but luck would do


@dataclass(frozen=True)
class TrafficPoint:
    """What a member hears in a round, if all vote and if a committee does."""

    members: int
    committee: int
    all_bytes: int
    committee_bytes: int
    all_signatures: int
    committee_signatures: int


@dataclass(frozen=True)
class ExchangePoint:
    """From the start of training until everybody has the global model; fan-out 0: all to all."""

    members: int
    fan_out: int
    delay_s: float
    most_received_mb: float
    most_held_mb: float


def study_committees(
    sizes: Sequence[int], shares: Sequence[float], risk: float, rule: QuorumRule
) -> list[CommitteePoint]:
    """The least committee for every number of members and share of liars, rounded down to whole members."""
    return [
        CommitteePoint(members, share, rule, risk, least_committee(members, int(share * members), risk, rule))
        for members in sizes
        for share in shares
    ]


def study_traffic(
    sizes: Sequence[int], selected: int, model_bytes: int, liar_share: float, risk: float
) -> list[TrafficPoint]:
    """What a member hears where all vote, and where a committee of the least safe size does."""
    points = []
    for members in sizes:
        size = least_committee(members, int(liar_share * members), risk, QuorumRule.BFT) or members
        everybody = heard_in_round(members, min(selected, members), model_bytes)
        few = heard_in_round(members, min(selected, members), model_bytes, voters=size)
        points.append(
            TrafficPoint(
                members, size, everybody.num_bytes, few.num_bytes, everybody.num_signatures, few.num_signatures
            )
        )
    return points


def study_exchange(scenario: Scenario, sizes: Sequence[int], fan_outs: Sequence[int]) -> list[ExchangePoint]:
    """All to all, and trees, among the first clients of a scenario in its first round; all of them train."""
    training_s, rate = draw_links(scenario)
    model_bits = float(draw_federation(scenario).model_bits[0])
    points = []
    for members in sizes:
        for fan_out in (0, *fan_outs):
            there = training_s[:members], rate[:members], model_bits
            found = exchange_all(*there) if fan_out == 0 else exchange_tree(*there, fan_out)
            bits_per_mb = 8e6
            points.append(
                ExchangePoint(
                    members,
                    fan_out,
                    found.delay_s,
                    found.most_received_bits / bits_per_mb,
                    found.most_held_bits / bits_per_mb,
                )
            )
    return points


def draw_links(scenario: Scenario) -> tuple[PerClient, PerClient]:
    """Training time (s) at the initial frequency and uplink rate (bit/s) of every client in the first round."""
    federation = draw_federation(scenario)
    state = next(draw_rounds(scenario, federation))
    radio = scenario.radio
    rate = uplink_rate(radio.bandwidth_hz, federation.power_w, state.gain, radio.noise_w_per_hz)
    return training_time(federation.cycles, federation.initial_cpu_hz), np.asarray(rate)
