"""Rounds of a chain as their blocks and the blocks before them have them: schedule, conditions, problem, decision."""

from collections.abc import Callable, Mapping

from bdfl.explorer import NotHere
from bdfl.explorer.block_page import show_schedule
from bdfl.explorer.block_source import Found
from bdfl.explorer.columns import OUTSIDE, RESTING, UNKNOWN, Columns
from bdfl.explorer.follower import Follower
from bdfl.explorer.pages import RoundView
from bdfl.ledger.block import Block, Conditions, Genesis, Schedule
from bdfl.ledger.chain_params import problem_of, read_decision
from bdfl.ledger.costs import ATTO, MICROWATT, NOISE
from bdfl.scheduling.problem import Decision, RoundProblem


class ChainRounds:
    """Reader of the rounds that a follower has passed, and of the next one."""

    def __init__(self, genesis: Genesis, follower: Follower, columns: Columns, find: Callable[[int], Found]) -> None:
        """`find` reads a block; `columns` have the rounds so far."""
        self._genesis, self._follower, self._columns, self._find = genesis, follower, columns, find

    def view(self, round: int) -> RoundView:
        """Return the state of a round; raise `NotHere`."""
        schedule, conditions, block = self._read(round)
        num = self._follower.num_members
        gain, power_w = [float("nan")] * num, [0.0] * num
        for client, member in enumerate(self._follower.member_set.members):
            power_w[client] = member.limits.power_uw / MICROWATT
        for client, found in conditions.items():
            if client < num:
                gain[client] = found.gain_atto / ATTO
        shown = show_schedule(schedule)
        for client in schedule.selected:
            if client < min(num, len(shown.power_w)):
                power_w[client] = shown.power_w[client]
        updates = () if block is None else block.body.updates
        physics = self._genesis.physics
        return RoundView(
            round=round,
            gain=gain,
            power_w=power_w,
            cpu_hz=shown.cpu_hz,
            mining_hz=shown.mining_hz,
            reachable=frozenset(client for client, found in conditions.items() if found.is_reachable),
            selected=frozenset(schedule.selected),
            delivered=frozenset(one.update.client for one in updates if not one.update.is_declined),
            winner=None if block is None else block.header.proposer,
            bandwidth_hz=float(physics.bandwidth_hz),
            noise_w_per_hz=physics.noise / NOISE,
        )

    def problem(self, round: int) -> tuple[RoundProblem, Decision | None]:
        """Return a round's problem and the decision on the chain; raise `NotHere`."""
        schedule, conditions, _ = self._read(round)
        is_next = round > self._columns.num_rows
        problem = self._follower.next_problem() if is_next else self._past_problem(round, schedule, conditions)
        if problem is None:
            raise NotHere(f"round {round}: its problem cannot be worked out from this chain")
        return problem, read_decision(schedule)

    def _read(self, round: int) -> tuple[Schedule, Mapping[int, Conditions], Block | None]:
        """Return the schedule of a round, the clients' reported conditions, and its block if it has one."""
        height = self._columns.num_rows
        if not 1 <= round <= height + 1:
            raise NotHere(f"round {round}: 1 to {height + 1} expected")
        if round == height + 1:
            return self._follower.schedule, self._follower.conditions, None
        block = self._find(round).block
        if block is None:
            raise NotHere(f"round {round}: its block cannot be read")
        if round == 1:
            return block.body.schedule, dict(enumerate(one.conditions for one in self._genesis.members)), block
        before = self._find(round - 1).block
        if before is None:
            raise NotHere(f"round {round}: the block before it cannot be read")
        reports = {signed.report.client: signed.report.conditions for signed in before.body.reports}
        return block.body.schedule, reports, block

    def _past_problem(
        self, round: int, schedule: Schedule, conditions: Mapping[int, Conditions]
    ) -> RoundProblem | None:
        """Return the problem of a past round: candidates from the columns, queues from the block before."""
        num = len(schedule.mining_hz)
        base = self._follower.base(num)
        before = None if round == 1 else self._find(round - 1).block
        queue_nano = (0,) * num if before is None else before.body.queue_nano[:num]
        if base is None or len(queue_nano) != num:
            return None
        states = self._columns["client_state"][round - 1]
        candidates = {
            client: found
            for client, found in sorted(conditions.items())
            if client < num and states[client] not in (RESTING, OUTSIDE, UNKNOWN)
        }
        return problem_of(base, round, queue_nano, candidates)
