"""A scheduler's problem and decision, in floats, from the chain's integers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from bdfl.ledger.block import Conditions, Genesis, Member, Schedule
from bdfl.ledger.units import ATTO, CAPACITANCE, MICROWATT, NANO, NOISE, ONE, PICOJOULE, to_cap, to_measure
from bdfl.scheduling.problem import Decision, RoundProblem, make_problem


def base_problem(genesis: Genesis, members: Sequence[Member]) -> RoundProblem:
    """The template of every round's problem: queues empty, no client reachable; raises `InvalidProblem`."""
    limits = [member.limits for member in members]
    physics = genesis.physics
    nobody = np.zeros(len(limits))
    return make_problem(
        min_clients=physics.min_clients,
        tradeoff=physics.tradeoff_nano / NANO,
        work_cycles=float(physics.work_cycles),
        bandwidth_hz=float(physics.bandwidth_hz),
        noise_w_per_hz=physics.noise / NOISE,
        queue=nobody,
        cycles=to_measure((one.cycles for one in limits), ONE),
        capacitance=to_measure((one.capacitance for one in limits), CAPACITANCE),
        energy_budget_j=nobody,
        gain=nobody,
        power_w=to_measure((one.power_uw for one in limits), MICROWATT),
        power_max_w=to_measure((one.power_max_uw for one in limits), MICROWATT),
        model_bits=to_measure((one.model_bits for one in limits), ONE),
        cpu_max_hz=to_cap(one.cpu_max_hz for one in limits),
        mining_max_hz=to_cap(one.mining_max_hz for one in limits),
        initial_cpu_hz=to_measure((one.initial_cpu_hz for one in limits), ONE),
        initial_mining_hz=to_measure((one.initial_mining_hz for one in limits), ONE),
        reachable=np.zeros(len(limits), dtype=np.bool_),
        participation_rate=to_measure((one.rate_nano for one in limits), NANO),
        samples=to_measure((one.samples for one in limits), ONE),
        overhead_s=physics.overhead_ns / NANO,
        seed=genesis.scheduler.seed,
    )


def problem_of(
    base: RoundProblem, round: int, queue_nano: Sequence[int], candidates: Mapping[int, Conditions]
) -> RoundProblem:
    """The problem of a round with these queues; clients that are no candidates are unreachable."""
    num = base.num_clients
    reachable = np.zeros(num, dtype=np.bool_)
    gain, budget_j = np.zeros(num), np.zeros(num)
    who = list(candidates)
    reachable[who] = True
    gain[who] = to_measure((found.gain_atto for found in candidates.values()), ATTO)
    budget_j[who] = to_measure((found.energy_budget_pj for found in candidates.values()), PICOJOULE)
    queue = to_measure(queue_nano, NANO)
    for values in (reachable, gain, budget_j, queue):
        values.setflags(write=False)
    return replace(
        base,
        round=round,
        queue=queue,
        reachable=reachable,
        gain=gain,
        energy_budget_j=budget_j,
    )


def read_decision(schedule: Schedule) -> Decision:
    """A schedule of the chain as a scheduler's decision, in floats."""
    num = len(schedule.mining_hz)
    chosen = list(schedule.selected)
    selected, cpu_hz, power_w = np.zeros(num, dtype=np.bool_), np.zeros(num), np.zeros(num)
    selected[chosen] = True
    cpu_hz[chosen] = schedule.cpu_hz
    power_w[chosen] = np.array(schedule.power_uw, dtype=np.float64) / MICROWATT
    return Decision(
        selected=selected,
        cpu_hz=cpu_hz,
        mining_hz=np.array(schedule.mining_hz, dtype=np.float64),
        power_w=power_w,
        reason=schedule.reason or None,
    )
