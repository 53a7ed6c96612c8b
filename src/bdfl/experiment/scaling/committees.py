"""Committees: a few members, drawn at random from on-chain data, vote instead of all."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from bdfl.encoding import Digest, Record, Whole, record_digest
from bdfl.ledger.roll import quorum_size
from bdfl.scenario.ledger import QuorumRule

_DOMAIN = "bdfl/lot/1"


class _Ticket(Record, frozen=True):
    domain: str
    tip: Digest
    member: Whole


def draw_committee(tip: bytes, members: Sequence[int], size: int) -> list[int]:
    """Return the members, ascending, that vote on the block after `tip`: those with the `size` lowest tickets.

    A ticket is a digest of the tip and the member's number, so the committee follows from the chain without a proof. It
    is known as soon as the tip is. The miner of the tip can discard a block, and with it a committee, at the price of
    another proof of work.
    """
    tickets = sorted((record_digest(_Ticket(_DOMAIN, tip, member)), member) for member in members)
    return sorted(member for _, member in tickets[:size])


def tail_probability(population: int, marked: int, drawn: int, least: int) -> float:
    """Probability that at least `least` of those drawn are marked, each set of `drawn` being equally likely.

    The hypergeometric tail: the sum over x >= least of C(marked, x) C(population - marked, drawn - x) / C(population,
    drawn), in logarithms.
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
    """Fewest members of a committee that can block its decisions or, under `bft`, make it commit two blocks.

    By silence: the committee less a quorum, plus one. By equivocation: the intersection of two quorums. `majority` does
    not tolerate Byzantine members, so only silent ones count.
    """
    quorum = quorum_size(rule, committee)
    silent = committee - quorum + 1
    return silent if rule is QuorumRule.MAJORITY else min(silent, 2 * quorum - committee)


def committee_risk(members: int, liars: int, committee: int, rule: QuorumRule) -> float:
    """Probability that a random committee has enough Byzantine members to break it."""
    return tail_probability(members, liars, committee, breaking_liars(committee, rule))


def least_committee(members: int, liars: int, risk: float, rule: QuorumRule) -> int | None:
    """Smallest committee that is broken with at most this probability; None if not even all members are safe."""
    return next(
        (size for size in range(1, members + 1) if committee_risk(members, liars, size, rule) <= risk),
        None,
    )
