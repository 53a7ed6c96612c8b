"""Protocol mutants: each breaks one rule, to show that the laws of `laws` notice.

A mutant patches functions in this process while a network runs. The laws are checked afterwards, unpatched.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import msgspec

from bdfl.encoding import encode
from bdfl.identity import Meaning, statement_digest
from bdfl.ledger import chain, chain_params, costs, rules, statements, statements as membership
from bdfl.ledger.block import Kind, Seal
from bdfl.ledger.errors import BadSignature
from bdfl.ledger.member_set import find_change
from bdfl.protocol import consensus, deadlines, entries, node, proposals, sync, updates as collecting, votes
from bdfl.protocol.events import Send
from bdfl.protocol.transition import Draft

Function = Callable[..., Any]


@dataclass(frozen=True)
class Swap:
    """A function of a module, and a factory of its faulty replacement."""

    module: ModuleType
    name: str
    make: Callable[[Function], Function]


@dataclass(frozen=True)
class Mutant:
    """A protocol with one fault."""

    name: str
    change: str
    swaps: tuple[Swap, ...]
    test: str = ""  # that notices, where faulty networks are too short or too calm to show it

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Apply the mutant inside the `with` block."""
        with ExitStack() as stack:
            for swap in self.swaps:
                stack.enter_context(_swapped(swap))
            yield


@contextmanager
def _swapped(swap: Swap) -> Iterator[None]:
    """Patch the function in every module that imported it by its name."""
    right = getattr(swap.module, swap.name)
    ours = [module for name, module in sys.modules.items() if name.startswith("bdfl.")]
    places = [module for module in ours if vars(module).get(swap.name) is right]
    wrong = swap.make(right)
    for place in places:
        setattr(place, swap.name, wrong)
    try:
        yield
    finally:
        for place in places:
            setattr(place, swap.name, right)


# Rules


def _nothing(right: Function) -> Function:
    """Replace a rule by one that accepts everything."""
    return lambda *arguments, **options: None


def _unsigned(rule: str) -> Callable[[Function], Function]:
    """Check all signatures but those of one rule."""

    def make(right: Function) -> Function:
        def require_signed(params: Any, name: str, *rest: Any, **named: Any) -> None:
            if name != rule:
                right(params, name, *rest, **named)

        return require_signed

    return make


def _also_last_round(right: Function) -> Function:
    """Accept updates signed for the previous round."""

    def validate_update(state: Any, signed: Any, tools: Any) -> None:
        try:
            right(state, signed, tools)
        except BadSignature:  # the rule that is checked last
            statement = statement_digest(Meaning.UPDATE, state.tip_place, encode(signed.update))
            if not tools.is_signed(state.members[signed.update.client].public_key, signed.signature, statement):
                raise

    return validate_update


def _any_aggregate(right: Function) -> Function:
    def validate_model(state: Any, block: Any, blobs: Any, tools: Any) -> bytes:
        if block.body.is_empty:
            return b""
        chosen = rules.aggregated_updates(block.body.updates)
        aggregated: bytes = tools.aggregate(state.params.aggregation, state.layout, chosen, blobs)
        return aggregated

    return validate_model


def _one_less(right: Function) -> Function:
    return lambda rule, num_members: right(rule, num_members) - 1


# Votes


def _first_counts_twice(right: Function) -> Function:
    return lambda held, kind, quorum: right(held, kind, quorum - 1)


def _prevotes_decide(right: Function) -> Function:
    def find_decisions(draft: Draft) -> Any:
        quorums = votes.find_quorums(draft.votes, Kind.PREVOTE, draft.chain.quorum)
        found = [(block, votes.collect_votes(draft.votes, Kind.PREVOTE, when, block)) for when, block in quorums]
        return [*found, *right(draft)]

    return find_decisions


def _without_lock(right: Function) -> Function:
    def choose(draft: Draft) -> Any:
        lock, draft.lock = draft.lock, None
        try:
            return right(draft)
        finally:
            draft.lock = lock

    return choose


def _only_this_attempt(right: Function) -> Function:
    """Ignore quorums of past attempts when moving the lock."""

    def move_lock(draft: Draft) -> None:
        held = draft.votes
        draft.votes = {key: vote for key, vote in held.items() if key[0] == draft.attempt}
        right(draft)
        draft.votes = held

    return move_lock


def _again(right: Function) -> Function:
    """Prevote again in the same attempt for a better block."""

    def prevote(draft: Draft) -> None:
        key = (draft.attempt, Kind.PREVOTE)
        cast = draft.own_votes.get(key)
        if cast is None or draft.lock is not None:
            right(draft)
            return
        votable = [one for one in draft.candidates.values() if proposals.is_votable(draft, one)]
        best = draft.lowest_hash_first(votable)
        if best and best[0].digest != cast.vote.block:
            consensus._cast(draft, Kind.PREVOTE, best[0].digest)

    return prevote


def _late_precommit(right: Function) -> Function:
    """Precommit for the lock also in an attempt that was left."""

    def precommit(draft: Draft) -> None:
        right(draft)
        lock, now = draft.lock, draft.attempt
        if lock is None or lock.attempt >= now or (lock.attempt, Kind.PRECOMMIT) in draft.own_votes:
            return
        if consensus._find_valid(draft, lock.block) is not None:
            draft.attempt = lock.attempt
            consensus._cast(draft, Kind.PRECOMMIT, lock.block)
            draft.attempt = now

    return precommit


def _said_first(right: Function) -> Function:
    """Send a vote before it is stored."""

    def cast(draft: Draft, kind: Kind, block: bytes) -> None:
        before = len(draft.effects)
        right(draft, kind, block)
        new = draft.effects[before:]
        draft.effects[before:] = sorted(new, key=lambda effect: not isinstance(effect, Send))

    return cast


def _fixed_timer(right: Function) -> Function:
    """Give every attempt the duration of the first."""
    return lambda draft: draft.context.timing.attempt_ns * 3 // 2


# Blocks and updates


def _leaves_out(right: Function) -> Function:
    """Accept blocks that leave out timely or scheduled updates."""

    def is_votable(draft: Draft, candidate: Any, *, is_led: bool = False) -> bool:
        is_fair = candidate.is_valid and candidate.complaint is None
        return is_fair and candidate.block.header.attempt <= draft.attempt

    return is_votable


def _own_block_only(right: Function) -> Function:
    """Require all timely updates in a block of a first attempt, for ever."""

    def is_votable(draft: Draft, candidate: Any, *, is_led: bool = False) -> bool:
        header, body = candidate.block.header, candidate.block.body
        if not right(draft, candidate, is_led=is_led):
            now, draft.attempt = draft.attempt, 1
            try:
                return header.attempt == 1 and bool(right(draft, candidate, is_led=is_led))
            finally:
                draft.attempt = now
        given = {signed.update.client for signed in body.updates}
        return header.attempt > 1 or given.issuperset(draft.in_time_updates)

    return is_votable


def _follows_anybody(right: Function) -> Function:
    """Skip to a later attempt because of a single member."""
    return lambda held, num_voters, beyond: right(held, 1, beyond)


def _never(right: Function) -> Function:
    return lambda *arguments: False


def _always(right: Function) -> Function:
    return lambda *arguments: True


def _asks_for_all(right: Function) -> Function:
    """Request every model that a block refers to, however many of one member."""
    return lambda draft, holder, blob, client, *, is_needed=False: right(draft, holder, blob, client, is_needed=True)


def _none(right: Function) -> Function:
    return lambda *arguments: []


def _wherever_signed(right: Function) -> Function:
    """Blame a proposer for a block of any height that it signed."""

    def is_meant_for_here(draft: Draft, block: Any) -> bool:
        members, header = draft.chain.params.members, block.header
        statement = statement_digest(Meaning.BLOCK, header.place, encode(Seal(header, block.nonce)))
        return draft.cache.is_signed(members[header.proposer].public_key, block.signature, statement)

    return is_meant_for_here


def _signs_its_clock(right: Function) -> Function:
    def cast(draft: Draft, kind: Kind, block: bytes) -> None:
        if not draft.own_votes and not draft.mining_since_ns:
            draft.mining_ms = draft.now_ns // 1_000_000
        right(draft, kind, block)

    return cast


# Members


def _binds_at_once(right: Function) -> Function:
    """Put a membership change into force at the next height."""

    def apply_block(state: Any, block: Any, tools: Any) -> Any:
        after = right(state, block, tools)
        if find_change(block.body.entries) is None:
            return after
        num_new = after.coming_params.num_members - after.num_members
        each = ("queue_nano", "misses", "rests_until", "rounds_scheduled", "epsilon_micro")
        longer = {name: getattr(after, name) + (0,) * num_new for name in each}
        mining_hz = after.schedule.mining_hz + (0,) * num_new
        schedule = msgspec.structs.replace(after.schedule, mining_hz=mining_hz)
        return replace(after, params=after.coming_params, schedule=schedule, **longer)

    return apply_block


def _old_quorum(right: Function) -> Function:
    """Keep the quorum of the previous members after a change."""

    def amend(before: Any, *rest: Any) -> Any:
        return replace(right(before, *rest), quorum=before.quorum)

    return amend


def _also_expired(right: Function) -> Function:
    def validate_assents(state: Any, found: Any, tools: Any) -> None:
        if found.expires > state.height:
            right(state, found, tools)

    return validate_assents


def _whoever_agreed(right: Function) -> Function:
    def validate_assents(state: Any, found: Any, tools: Any) -> None:
        if found.expires <= state.height:
            right(state, found, tools)

    return validate_assents


def _insists(right: Function) -> Function:
    """Require also statements that nobody waits for."""

    def find_left_out(draft: Draft, updates: Any, reports: Any) -> Any:
        return right(draft, updates, reports) | (set(draft.in_time_reports) - draft.due - set(reports))

    return find_left_out


def _only_at_first(right: Function) -> Function:
    """Require nothing of a block in later attempts."""
    return lambda draft, *given: frozenset() if draft.attempt > 1 else right(draft, *given)


# Memory


def _without(**forgotten: Any) -> Callable[[Function], Function]:
    """Override fields of the recovered state at a restart."""

    def make(right: Function) -> Function:
        def begin(context: Any, chain: Any, recovered: Any = node.NOTHING_RECOVERED) -> Any:
            return right(context, chain, replace(recovered, **forgotten))

        return begin

    return make


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "unsigned-votes",
        "votes are counted without checking their signatures",
        (Swap(statements, "require_signed", _unsigned("vote-signature")),),
    ),
    Mutant(
        "unsigned-updates",
        "updates are taken without checking their signatures",
        (Swap(statements, "require_signed", _unsigned("update-signature")),),
    ),
    Mutant(
        "unsigned-reports",
        "reports are taken without checking their signatures",
        (Swap(statements, "require_signed", _unsigned("report-signature")),),
    ),
    Mutant(
        "unsigned-blocks",
        "blocks are taken without checking their signatures",
        (Swap(statements, "require_signed", _unsigned("block-signature")),),
    ),
    Mutant(
        "stale-updates",
        "updates signed for the round before are taken",
        (Swap(statements, "validate_update", _also_last_round),),
        "tests/transports/test_faults.py::test_one_liar_of_four_changes_nothing_but_is_noticed",
    ),
    Mutant(
        "any-aggregate",
        "the global model of a block is not compared with one's own aggregate",
        (Swap(rules, "validate_model", _any_aggregate),),
    ),
    Mutant(
        "any-schedule",
        "the next schedule of a block is not judged",
        (Swap(rules, "validate_next_schedule", _nothing), Swap(rules, "judge_schedule", _nothing)),
    ),
    Mutant(
        "any-queues",
        "the virtual queues of a block are not derived again",
        (Swap(rules, "validate_queues", _nothing),),
    ),
    Mutant(
        "any-evidence",
        "accusations in a block are believed without proof",
        (Swap(rules, "validate_entries", _nothing),),
    ),
    Mutant("no-work", "the proof of work is not checked", (Swap(rules, "validate_work", _nothing),)),
    Mutant(
        "any-certificate",
        "a decided block is believed without its quorum",
        (Swap(statements, "validate_certificate", _nothing),),
    ),
    Mutant(
        "any-blob",
        "an update's bytes are taken for a model without looking",
        (Swap(statements, "validate_update_blob", _nothing),),
    ),
    Mutant("small-quorum", "a quorum is one vote smaller", (Swap(chain_params, "quorum_size", _one_less),)),
    Mutant(
        "vote-twice-counted",
        "the first vote for a block counts twice",
        (Swap(votes, "find_quorums", _first_counts_twice),),
    ),
    Mutant(
        "prevotes-decide",
        "a quorum of prevotes commits",
        (Swap(consensus, "_find_decisions", _prevotes_decide),),
    ),
    Mutant("forgotten-lock", "the lock does not bind the next prevote", (Swap(consensus, "_choose", _without_lock),)),
    Mutant(
        "past-quorums-ignored",
        "a quorum of prevotes of a past attempt moves no lock",
        (Swap(consensus, "_move_lock", _only_this_attempt),),
        "tests/protocol/test_node.py"
        "::test_a_later_quorum_moves_the_lock_even_when_its_attempt_is_over_and_then_without_a_precommit",
    ),
    Mutant(
        "second-prevote", "a better block is prevoted for in the same attempt", (Swap(consensus, "_prevote", _again),)
    ),
    Mutant(
        "late-precommit",
        "a precommit is cast in an attempt that was left",
        (Swap(consensus, "_precommit", _late_precommit),),
    ),
    Mutant("sent-before-kept", "a vote is sent before it is kept", (Swap(consensus, "_cast", _said_first),)),
    Mutant(
        "follow-anybody",
        "one member's vote is enough to leave an attempt",
        (Swap(votes, "reached_attempt", _follows_anybody),),
        "tests/protocol/test_node.py::test_enough_votes_of_a_later_attempt_take_a_node_there",
    ),
    Mutant(
        "fixed-timers",
        "later attempts last no longer",
        (Swap(consensus, "_attempt_ns", _fixed_timer),),
        "tests/protocol/test_node.py::test_attempts_last_longer_and_longer_once_a_block_is_known",
    ),
    Mutant(
        "left-out",
        "a block may leave out any update at any time",
        (Swap(proposals, "is_votable", _leaves_out),),
    ),
    Mutant(
        "stubborn",
        "a first block that leaves out something is never voted for",
        (Swap(proposals, "is_votable", _own_block_only),),
    ),
    Mutant(
        "blamed-digest",
        "a spoiled copy of a block makes its name refused",
        (Swap(proposals, "_is_meant_for_here", _always),),
    ),
    Mutant(
        "blamed-author",
        "an old block sent again makes its author banned",
        (Swap(proposals, "_is_meant_for_here", _wherever_signed),),
        "tests/protocol/test_node.py::test_an_old_block_sent_again_bans_nobody_but_costs_its_sender",
    ),
    Mutant(
        "head-start",
        "a block is voted for at once though its proposer kept all waiting",
        (Swap(deadlines, "is_head_start", _never),),
        "tests/campaigns/test_selfish.py::test_withholding_ones_statements_wins_no_blocks",
    ),
    Mutant(
        "endless-patience",
        "who is late in every round is waited for in every round",
        (Swap(deadlines, "charge_lateness", _nothing),),
        "tests/campaigns/test_selfish.py::test_the_mean_round_is_at_most_twice_as_long_beside_a_selfish_member",
    ),
    Mutant(
        "untold",
        "nobody passes on what a member that keeps others waiting told it",
        (Swap(deadlines, "tell_of", _nothing),),
        "tests/campaigns/test_selfish.py::test_who_alone_hears_a_members_statements_wins_no_more_than_its_share",
    ),
    Mutant(
        "insisting",
        "a first block must have what nobody waited for",
        (Swap(collecting, "find_left_out", _insists),),
        "tests/protocol/test_deadlines.py"
        "::test_what_a_member_that_nobody_waits_for_told_a_few_may_be_missing_in_a_first_block",
    ),
    Mutant(
        "free-later-blocks",
        "a block may leave out everybody's reports in a later attempt",
        (Swap(collecting, "find_left_out", _only_at_first),),
        "tests/protocol/test_node.py::test_each_attempt_may_leave_out_one_late_member_more",
    ),
    Mutant(
        "awaited-prevotes",
        "a split is waited out for a member that prevotes late",
        (Swap(consensus, "_expect_no_more", _nothing),),
        "tests/protocol/test_node.py::test_a_split_is_not_waited_out_for_a_member_whose_prevote_came_late",
    ),
    Mutant(
        "dropped-entries",
        "a block may leave out evidence and changes for ever",
        (Swap(entries, "drops_entries", _never),),
        "tests/protocol/test_entries.py::test_a_first_block_without_an_entry_held_for_two_heights_is_not_voted_for",
    ),
    Mutant(
        "endless-exchange",
        "a report may make everybody wait for as long as it says",
        (Swap(costs, "_find_too_slow", _none),),
        "tests/campaigns/test_selfish.py::test_the_mean_round_is_at_most_twice_as_long_beside_a_selfish_member",
    ),
    Mutant(
        "uptime-as-wait",
        "who never waited for a block signs its clock as the wait",
        (Swap(consensus, "_cast", _signs_its_clock),),
        "tests/protocol/test_deadlines.py::test_who_was_still_collecting_signs_no_wait",
    ),
    Mutant(
        "change-at-once",
        "a change of membership binds from the next height on",
        (Swap(chain, "apply_block", _binds_at_once),),
    ),
    Mutant(
        "old-quorum",
        "changed members decide by the quorum of those before",
        (Swap(chain_params, "_amend", _old_quorum),),
    ),
    Mutant(
        "expired-change",
        "a change of membership is made after it expired",
        (Swap(membership, "validate_assents", _also_expired),),
    ),
    Mutant(
        "few-assents",
        "a change of membership is made whoever signed it",
        (Swap(membership, "validate_assents", _whoever_agreed),),
    ),
    Mutant(
        "every-model", "any number of models of one member is held", (Swap(collecting, "want_blob", _asks_for_all),)
    ),
    Mutant(
        "forgotten-votes",
        "own votes are forgotten at a restart",
        (Swap(node, "begin", _without(votes=(), progress=None)),),
    ),
    Mutant(
        "forgotten-progress",
        "attempt and lock are forgotten at a restart",
        (Swap(node, "begin", _without(progress=None)),),
    ),
    Mutant(
        "forgotten-update", "the own update is forgotten at a restart", (Swap(node, "begin", _without(update=None)),)
    ),
    Mutant(
        "forgotten-report", "the own report is forgotten at a restart", (Swap(node, "begin", _without(report=None)),)
    ),
    Mutant("never-trusts", "pruned updates are waited for", (Swap(sync, "_is_gone", _never),)),
    Mutant("trusts-early", "decided models are not recomputed", (Swap(sync, "_is_gone", _always),)),
)


def run_test(name: str) -> int:
    """Run a mutant's test with the mutant applied; return pytest's exit code."""
    import pytest

    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    with mutant.applied():
        return int(pytest.main(["-q", "-x", "--tb=short", "-p", "no:cacheprovider", mutant.test]))


if __name__ == "__main__":
    sys.exit(run_test(sys.argv[1]))
