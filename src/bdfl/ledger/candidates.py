"""Candidates of a round: those who reported, are reachable and do not rest for an update they missed."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from bdfl.ledger.block import Conditions, SignedReport

MAX_REST = 63  # rounds that a member sits out at most


def find_candidates(
    conditions: Mapping[int, Conditions], rests_until: Sequence[int], round: int, min_clients: int
) -> Mapping[int, Conditions]:
    """Conditions of those who may be scheduled in a round, by client: they reported, are reachable and do not rest.

    Nobody rests where too few would be left for a round: else one member that never trains could stop all others.
    """
    reachable = {client: found for client, found in sorted(conditions.items()) if found.is_reachable}
    rested = {client: found for client, found in reachable.items() if rests_until[client] < round}
    return MappingProxyType(rested if len(rested) >= min_clients else reachable)


def settle_conditions(
    reports: Sequence[SignedReport], staying: Collection[int], offenders: Collection[int]
) -> Mapping[int, Conditions]:
    """Conditions that count in the round after, by client: reported by those who stay members and are no offenders."""
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
    """Misses in a row and last rounds of rest: a scheduled member that was not heard sits out 2^k - 1 rounds.

    One that said it has nothing to give was heard.
    """
    now_misses, now_rests_until = list(misses), list(rests_until)
    for client in selected:
        if client in heard:
            now_misses[client] = 0
        else:
            now_misses[client] += 1
            now_rests_until[client] = round + min(2 ** now_misses[client] - 1, MAX_REST)
    return tuple(now_misses), tuple(now_rests_until)
