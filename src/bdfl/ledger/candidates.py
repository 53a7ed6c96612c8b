"""Eligibility for a round: members that reported, are reachable and are not in back-off after missed updates."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from bdfl.ledger.block import Conditions, SignedReport

MAX_REST = 63  # rounds: longest back-off


def find_candidates(
    conditions: Mapping[int, Conditions], rests_until: Sequence[int], round: int, min_clients: int
) -> Mapping[int, Conditions]:
    """Conditions of the clients eligible in a round, by client: reported, reachable and not in back-off.

    Back-off is ignored where too few clients would be left: else one that never trains could stop all others.
    """
    reachable = {client: found for client, found in sorted(conditions.items()) if found.is_reachable}
    rested = {client: found for client, found in reachable.items() if rests_until[client] < round}
    return MappingProxyType(rested if len(rested) >= min_clients else reachable)


def settle_conditions(
    reports: Sequence[SignedReport], staying: Collection[int], offenders: Collection[int]
) -> Mapping[int, Conditions]:
    """Conditions for the round after, by client: those reported by members that stay and are no offenders."""
    return MappingProxyType(
        {
            signed.report.client: signed.report.conditions
            for signed in reports
            if signed.report.client in staying and signed.report.client not in offenders
        }
    )


def settle_misses(
    selected: Sequence[int],
    heard: Collection[int],
    misses: Sequence[int],
    rests_until: Sequence[int],
    round: int,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Misses in a row and last rounds of back-off, by client: the k-th miss excludes a member for 2^k - 1 rounds.

    A member that declined was heard, and misses nothing.
    """
    now_misses, now_rests_until = list(misses), list(rests_until)
    for client in selected:
        if client in heard:
            now_misses[client] = 0
        else:
            now_misses[client] += 1
            now_rests_until[client] = round + min(2 ** now_misses[client] - 1, MAX_REST)
    return tuple(now_misses), tuple(now_rests_until)
