"""The members of a chain by height, read from its blocks; changes are validated elsewhere.

A change in block h binds from height h + 2 on: the schedule of round h + 1 is in block h already. Numbers and keys are
never reassigned.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from bdfl.ledger.block import (
    Admission,
    Block,
    Change,
    Entry,
    Evidence,
    FalseWork,
    Genesis,
    Member,
    MembershipChange,
    TwoBlocks,
    TwoUpdates,
    TwoVotes,
)
from bdfl.scenario.schema_learning import QuorumRule

BINDS_AFTER = 2  # heights from the block of a change to the first height it binds


@dataclass(frozen=True)
class MemberSet:
    """The member set: all members by number, present and past, with their first and last heights. It never shrinks."""

    members: tuple[Member, ...]
    first_heights: tuple[int, ...]
    last_heights: tuple[int | None, ...]  # none: a present member

    @cached_property
    def active(self) -> frozenset[int]:
        """Numbers of the present members."""
        return frozenset(number for number, last in enumerate(self.last_heights) if last is None)

    def after(self, change: Change, height: int) -> "MemberSet":
        """The member set from height `height` on, with the change applied unchecked."""
        if isinstance(change, Admission):
            return MemberSet((*self.members, change.member), (*self.first_heights, height), (*self.last_heights, None))
        last_heights = list(self.last_heights)
        last_heights[change.number] = height - 1
        return MemberSet(self.members, self.first_heights, tuple(last_heights))


def first_member_set(genesis: Genesis) -> MemberSet:
    """The member set of a genesis."""
    num_members = len(genesis.members)
    return MemberSet(genesis.members, (1,) * num_members, (None,) * num_members)


def read_member_set(genesis: Genesis, blocks: Iterable[Block]) -> MemberSet:
    """The member set after these blocks of a valid chain, including changes that do not bind yet."""
    member_set = first_member_set(genesis)
    for block in blocks:
        found = find_change(block.body.entries)
        if found is not None:
            member_set = member_set.after(found.change, block.header.height + BINDS_AFTER)
    return member_set


def find_change(entries: Sequence[Entry]) -> MembershipChange | None:
    """The change of membership in a block's entries: at most one, the last entry."""
    last = entries[-1] if entries else None
    return last if isinstance(last, MembershipChange) else None


def find_evidence(entries: Sequence[Entry]) -> list[Evidence]:
    """The evidence among a block's entries."""
    return [entry for entry in entries if not isinstance(entry, MembershipChange)]


def offender_of(evidence: Evidence) -> int:
    """The member that the evidence is against."""
    match evidence:
        case TwoVotes():
            return evidence.first.vote.voter
        case TwoBlocks():
            return evidence.first.header.proposer
        case TwoUpdates():
            return evidence.first.update.client
        case FalseWork():
            return evidence.block.header.proposer


def quorum_size(rule: QuorumRule, num_members: int) -> int:
    """Votes that make a block final: more than half of the members, or more than two thirds."""
    return num_members // 2 + 1 if rule is QuorumRule.MAJORITY else 2 * num_members // 3 + 1
