"""Invariants ("laws") of every trial, whatever the faults: each is a function that returns the first breach.

Only honest nodes are judged, by their actions and not by their state. Blocks are judged by the rules alone, with a
separate cache.
"""

from collections.abc import Callable
from dataclasses import dataclass

from bdfl.ledger.block import Genesis, MembershipChange
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain import ChainState, apply_block, start_chain
from bdfl.ledger.errors import InvalidBlock, MissingBlob, RuleBroken
from bdfl.ledger.member_set import BINDS_AFTER, MemberSet, find_change, offender_of, read_member_set
from bdfl.ledger.rules import required_blobs, validate_model, validate_proposal
from bdfl.ledger.statements import validate_certificate, validate_change
from bdfl.protocol.proposals import MAX_AHEAD
from bdfl.protocol.sync import MAX_EARLY
from bdfl.protocol.updates import MAX_BLOBS
from campaigns.faults.plan import FaultPlan
from campaigns.faults.recorder import Committed, Recorder
from campaigns.faults.shares import is_too_large, share_beside

ROUNDS_TO_AGREE = 3
ENTRY_BLOCKS = 5  # within which a valid entry must be on the chain
MAX_DECIDABLE = 3  # models of one liar that a quorum can vote for at a height, if honest members request two each


@dataclass(frozen=True)
class Breach:
    """A violated law, and the details."""

    law: str
    what: str

    def __str__(self) -> str:
        return f"{self.law}: {self.what}"


@dataclass(frozen=True, eq=False)
class Trial:
    """Complete record of one network."""

    plan: FaultPlan
    genesis: Genesis
    record: Recorder
    find_blob: Callable[[bytes], bytes | None]  # among all blobs that honest nodes ever kept
    quiet_height: int  # of the highest honest node when the faults stopped
    heights: tuple[int, ...]  # of all nodes at the end
    end_ns: int


def check_agreement(trial: Trial, cache: VerificationCache) -> Breach | None:
    """No two honest nodes commit different blocks at a height."""
    first: dict[int, tuple[int, bytes]] = {}
    for node in trial.plan.honest:
        for found in trial.record.nodes[node].commits:
            name = found.block.digest
            other, chosen = first.setdefault(found.height, (node, name))
            if chosen != name:
                what = f"at height {found.height} node {other} committed {_short(chosen)}, node {node} {_short(name)}"
                return Breach("agreement", what)
    return None


def check_validity(trial: Trial, cache: VerificationCache) -> Breach | None:
    """No honest node commits an invalid block, or one without a quorum: all rules are checked again."""
    start = start_chain(trial.genesis, cache)
    states: dict[bytes, ChainState] = {start.tip: start}
    for node in trial.plan.honest:
        for found in trial.record.nodes[node].commits:
            try:
                _validate(trial, found, states, cache)
            except (RuleBroken, MissingBlob) as error:
                return Breach("validity", f"node {node} committed block {found.height}: {error}")
    return None


def _validate(trial: Trial, found: Committed, states: dict[bytes, ChainState], cache: VerificationCache) -> None:
    state = states.get(found.block.header.parent)
    if state is None or state.height + 1 != found.height:
        raise RuleBroken("parent", "a committed block of the height before", found.block.header.parent)
    name = found.block.digest
    validate_certificate(state, name, found.certificate, cache)
    if name in states:
        return
    validate_proposal(state, found.block, cache)
    needed = {blob: trial.find_blob(blob) for blob in (state.model, *required_blobs(state, found.block))}
    blobs = {blob: data for blob, data in needed.items() if data is not None}
    validate_model(state, found.block, blobs, cache)
    states[name] = apply_block(state, found.block, cache)


def check_progress(trial: Trial, cache: VerificationCache) -> Breach | None:
    """Every honest node reaches the same tip within three rounds after the faults stop, or its last height."""
    roll = _longest_roll(trial)
    for node in trial.plan.honest:
        wanted = expected_height(roll, node, trial.quiet_height)
        if trial.heights[node] < wanted:
            waited_s = (trial.end_ns - trial.plan.quiet_ns) / 1e9
            when = f"{waited_s:.0f} s after the faults stopped" if waited_s >= 0 else "in a network that never rests"
            what = f"{when} node {node} is at height {trial.heights[node]}"
            return Breach("progress", f"{what}, {wanted} expected")
    return None


def expected_height(roll: MemberSet, node: int, quiet_height: int) -> int:
    """Return the height a node must reach: three rounds beyond the end of the faults, unless it is removed before.

    A joining node must be admitted by then, or no member answers it in time.
    """
    wanted = quiet_height + ROUNDS_TO_AGREE
    if node >= len(roll.members) or roll.first_heights[node] - BINDS_AFTER > quiet_height:
        return 0
    last = roll.last_heights[node]
    return wanted if last is None else min(wanted, last)


def check_members_only(trial: Trial, cache: VerificationCache) -> Breach | None:
    """No honest node votes at a height at which it is not a member."""
    roll = _longest_roll(trial)
    for node in trial.plan.honest:
        is_known = node < len(roll.members)
        first, last = (roll.first_heights[node], roll.last_heights[node]) if is_known else (None, None)
        for sent in trial.record.nodes[node].votes:
            if first is None or sent.height < first or (last is not None and sent.height > last):
                return Breach("members only", f"node {node} voted at height {sent.height}, where it is no member")
    return None


def count_changes(trial: Trial) -> int:
    """Count membership changes in the longest honest chain."""
    return sum(find_change(found.block.body.entries) is not None for found in _longest_chain(trial))


def _longest_chain(trial: Trial) -> list[Committed]:
    return max((trial.record.nodes[node].commits for node in trial.plan.honest), key=len)


def _longest_roll(trial: Trial) -> MemberSet:
    return read_member_set(trial.genesis, (found.block for found in _longest_chain(trial)))


def check_memory(trial: Trial, cache: VerificationCache) -> Breach | None:
    """No vote sent, lock kept or block committed is lost by a restart, and no honest node equivocates."""
    honest = set(trial.plan.honest)
    for restart in trial.record.restarts:
        if restart.node not in honest:
            continue
        when = f"node {restart.node}, back at {restart.now_ns / 1e9:.3f} s, lost"
        for sent in restart.lost_votes:
            vote = sent.signed.vote
            what = f"its {vote.kind} for {_short(vote.block)} at {sent.height}.{vote.attempt}"
            return Breach("memory", f"{when} {what}")
        for found in restart.lost_blocks:
            return Breach("memory", f"{when} block {found.height}, {_short(found.block.digest)}")
        if restart.lost_progress is not None:
            kept = restart.lost_progress
            held = f" and its lock on {_short(kept.lock[0].vote.block)}" if kept.lock else ""
            return Breach("memory", f"{when} attempt {kept.height}.{kept.attempt}{held}")
    for node in trial.plan.honest:
        cast: dict[tuple[int, int, str], bytes] = {}
        for sent in trial.record.nodes[node].votes:
            vote = sent.signed.vote
            before = cast.setdefault((sent.height, vote.attempt, vote.kind), vote.block)
            if before != vote.block:
                what = f"two {vote.kind}s at {sent.height}.{vote.attempt}: {_short(before)} and {_short(vote.block)}"
                return Breach("memory", f"node {node} cast {what}")
        for (kind, height, attempt), signatures in trial.record.nodes[node].signed.items():
            if len(signatures) > 1:
                place = f"{height}.{attempt}" if attempt else f"{height}"
                return Breach("memory", f"node {node} signed {len(signatures)} {kind}s at {place}")
    return None


def check_innocence(trial: Trial, cache: VerificationCache) -> Breach | None:
    """No honest node is an offender: no block convicts it, and no honest node has evidence against it."""
    honest = set(trial.plan.honest)
    for node in trial.plan.honest:
        for accused in sorted(trial.record.nodes[node].accused & honest):
            return Breach("innocence", f"node {node} has evidence against node {accused}, which is honest")
        for found in trial.record.nodes[node].commits:
            evidence = (entry for entry in found.block.body.entries if not isinstance(entry, MembershipChange))
            for convicted in sorted(honest.intersection(map(offender_of, evidence))):
                return Breach("innocence", f"block {found.height} convicts node {convicted}, which is honest")
    return None


def check_nobody_left_out(trial: Trial, cache: VerificationCache) -> Breach | None:
    """A block of a first attempt contains every honest update that all its honest voters held in time."""
    honest = set(trial.plan.honest)
    for node in trial.plan.honest:
        for found in trial.record.nodes[node].commits:
            if found.block.header.attempt != 1:
                continue
            voters = trial.record.held.get((found.height, found.block.digest), {})
            held = [clients for voter, clients in voters.items() if voter in honest]
            in_time = frozenset.intersection(*held) & honest if held else frozenset()
            left_out = in_time - {signed.update.client for signed in found.block.body.updates}
            if left_out:
                what = f"block {found.height} leaves out the update of member {min(left_out)}"
                return Breach("nobody left out", f"{what}, which all its honest voters held in time")
    return None


def check_bounded_memory(trial: Trial, cache: VerificationCache) -> Breach | None:
    """No honest node ever exceeds the memory bounds of `docs/security.md`, whatever liars send."""
    num_liars, num_members = len(trial.plan.liars), trial.plan.num_keys
    max_blobs = num_members + (MAX_BLOBS + MAX_DECIDABLE - 1) * num_liars
    for node in trial.plan.honest:
        record = trial.record.nodes[node]
        if record.most_blobs > max_blobs:
            return Breach(
                "bounded memory", f"node {node} held {record.most_blobs} models, at most {max_blobs} expected"
            )
        if record.most_early > MAX_EARLY * num_members:
            return Breach("bounded memory", f"node {node} held {record.most_early} messages of the next height")
        for attempt, most in record.most_candidates.items():
            limit = 2 * num_members * (attempt + MAX_AHEAD) + 1
            if most > limit:
                what = f"node {node} held {most} blocks in attempt {attempt}, at most {limit} expected"
                return Breach("bounded memory", what)
    return None


def check_trust(trial: Trial, cache: VerificationCache) -> Breach | None:
    """A model is taken on trust only if its updates are pruned everywhere: so many blocks above it are committed."""
    for node in trial.plan.honest:
        for found in trial.record.nodes[node].commits:
            num_above = found.highest - found.height
            if found.is_trusted and not 0 < trial.plan.keep_blocks <= num_above:
                what = f"node {node} took model {found.height} on trust, {max(num_above, 0)} below the highest"
                return Breach("trust", f"{what}, {trial.plan.keep_blocks or 'all'} are kept")
    return None


def check_share(trial: Trial, cache: VerificationCache) -> Breach | None:
    """No selfish member wins significantly more blocks than its share of the hashing after the faults stop."""
    won, winnable, expected = share_of_selfish(trial)
    if is_too_large(won, winnable, expected):
        return Breach("share", f"selfish members won {won} of {winnable} blocks, {expected:.1f} are their share")
    return None


def share_of_selfish(trial: Trial) -> tuple[int, int, float]:
    """Return the blocks that selfish members won after the faults stopped, could have won, and their fair share.

    Other selfish members count as not hashing, since honest members win the blocks they forgo.
    """
    won, winnable, expected = 0, 0, 0.0
    selfish = [member for member, _ in trial.plan.selfish]
    schedule = trial.genesis.schedule
    for found in _longest_chain(trial) if selfish else ():
        members = range(len(schedule.mining_hz))
        for member in (one for one in selfish if one in members and found.height > trial.quiet_height):
            won += found.block.header.proposer == member
            winnable += 1
            expected += share_beside(schedule, member, selfish)
        schedule = found.block.body.next_schedule
    return won, winnable, expected


def check_entries(trial: Trial, cache: VerificationCache) -> Breach | None:
    """No evidence or signed change held by an honest node stays off the chain for long once the faults stopped."""
    for node in trial.plan.honest:
        record = trial.record.nodes[node]
        for what, since in record.entries.items():
            num_blocks = trial.heights[node] + 1 - max(since, trial.quiet_height + 1)
            if num_blocks > ENTRY_BLOCKS * (1 + len(trial.plan.offers)) and _is_possible(record.chain, what, cache):
                name = f"evidence against member {what}" if isinstance(what, int) else f"{what.change}"
                return Breach("entries", f"node {node} has held {name} for {num_blocks} blocks without it")
    return None


def _is_possible(chain: ChainState | None, what: int | MembershipChange, cache: VerificationCache) -> bool:
    if chain is None or isinstance(what, int):
        return chain is not None
    try:
        validate_change(chain, what, cache)
    except InvalidBlock:
        return False
    return True


LAWS: tuple[Callable[[Trial, VerificationCache], Breach | None], ...] = (
    check_agreement,
    check_validity,
    check_progress,
    check_memory,
    check_innocence,
    check_nobody_left_out,
    check_members_only,
    check_bounded_memory,
    check_trust,
    check_share,
    check_entries,
)


def find_breaches(trial: Trial, cache: VerificationCache) -> list[Breach]:
    """Return the first breach of every violated law; the cache must not be one that the nodes used."""
    return [breach for law in LAWS if (breach := law(trial, cache)) is not None]


def _short(name: bytes) -> str:
    return name.hex()[:6]
