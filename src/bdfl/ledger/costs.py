"""The cost model in fixed point: units of the chain, decimal arithmetic.

All hashed values are whole numbers of units so small that rounding, to the nearest and half to even, is not measurable:
the only place where measures become integers, and back.

Costs and constraints of a schedule are the decimal twin of `radio`, `compute` and `scheduling.checker`, the same on
every machine. Sums, products, quotients and logarithms have 40 digits and are rounded half to even; results are rounded
once more, to whole units. Binary floats would not do: numpy's logarithms and cube roots differ between processors.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal, DivisionByZero, InvalidOperation, Overflow, localcontext
from fractions import Fraction
from math import isfinite

import numpy as np

from bdfl.encoding import INT_LIMIT
from bdfl.errors import BdflError
from bdfl.ledger.block import Conditions, Genesis, Member, Modelled, Physics, Schedule
from bdfl.types import PerClient

# Units in one of the measures of the cost model.
ONE = 1  # cycle, bit, Hz
NANO = 10**9  # shares, queue lengths, V, seconds
MICROWATT = 10**6  # W
PICOJOULE = 10**12  # J
ATTO = 10**18  # channel gain
NOISE = 10**30  # W/Hz
CAPACITANCE = 10**36  # W s^3


class DoesNotFit(BdflError):
    """A value that the chain's integers cannot hold: its name, the value found and the range allowed."""

    def __init__(self, name: str, found: float, least: float, most: float) -> None:
        super().__init__(name, found, least, most)
        self.name = name
        self.found = found
        self.least = least
        self.most = most

    def __str__(self) -> str:
        return f"{self.name}: {self.found!r} given, the chain holds {self.least:g} to {self.most:g}"


def count_units(value: float, per_one: int, name: str, *, least: int = 0, most: int = INT_LIMIT) -> int:
    """Number of units in `value`, `per_one` to one; raises `DoesNotFit` below `least` or above `most`."""
    is_number = isinstance(value, int) or isfinite(value)
    count = round(Fraction(value) * per_one) if is_number else -1
    if not least <= count <= most:
        raise DoesNotFit(name, value, least / per_one, most / per_one)
    return count


def count_capped(value: float, per_one: int, name: str) -> int | None:
    """Number of units in a cap, as `count_units`; none for infinity, which means no cap."""
    return None if value == float("inf") else count_units(value, per_one, name)


def to_measure(counts: Iterable[int], per_one: int) -> PerClient:
    """Counts of units as measures, (clients,): each the float nearest to the exact value."""
    return np.array([count / per_one for count in counts], dtype=np.float64)


def to_cap(counts: Iterable[int | None]) -> PerClient:
    """Caps in Hz, (clients,): infinity where there is none."""
    return np.array([np.inf if count is None else float(count) for count in counts], dtype=np.float64)


PRECISION = 40  # digits
# Share of a budget that may be overdrawn: frequencies are rounded down to whole Hz, and a client that mines a Hz less
# makes mining longer, and so dearer, for all others.
TOLERANCE = Decimal("1e-6")
_HALF = Decimal("0.5")


@dataclass(frozen=True)
class Breach:
    """A violated constraint: its name, the client, the value found and the value allowed."""

    constraint: str  # "C1", "C2", "C3", "cap", "exchange" or "form"
    client: int | None
    found: str
    allowed: str

    def __str__(self) -> str:
        return self.found if self.client is None else f"client {self.client}: {self.found}"


@dataclass(frozen=True)
class Assessment:
    """Modelled costs of a schedule and its breaches; costs are zero if a breach leaves them undefined."""

    modelled: Modelled
    objective_nano: int
    breaches: tuple[Breach, ...]


def assess_schedule(
    genesis: Genesis,
    members: Sequence[Member],
    schedule: Schedule,
    candidates: Mapping[int, Conditions],
    queue_nano: Sequence[int],
) -> Assessment:
    """Delay, energies and objective of a well-formed schedule, and every constraint it violates.

    [Li24, Eq. 24] C1: only `candidates`, the eligible clients with their conditions, train or mine. C2: at least m
    train. C3: no budget is overdrawn by more than `TOLERANCE`. Caps: frequencies and powers within the client's limits.
    Exchange: no client trains and uploads for longer than the chain's law allows, so that no report can stop a round.
    An idle round costs nothing and violates nothing. `members` are all with a number in the round.
    """
    num_members = len(members)
    if not schedule.is_feasible:
        return Assessment(no_costs(num_members), 0, ())
    breaches = _find_outsiders(schedule, candidates)
    if not breaches:
        breaches = [*_find_too_few(genesis, schedule), *_find_above_caps(members, schedule)]
        breaches += _find_endless(members, schedule, candidates)
    if breaches:
        return Assessment(no_costs(num_members), 0, tuple(breaches))
    with localcontext(_arithmetic()):
        return _assess(genesis, members, schedule, candidates, queue_nano)


def no_costs(num_members: int) -> Modelled:
    """Costs of an idle round: all zero."""
    return Modelled(0, 0, 0, (0,) * num_members)


def slowest_exchange_ns(physics: Physics, members: Sequence[Member]) -> int:
    """Time that the slowest client reachable in round 1 needs to train and upload; 0 if there is none.

    Each trains at its initial frequency, within its cap and within half of the energy left by its upload.
    """
    slowest_s = Decimal(0)
    with localcontext(_arithmetic()):
        for member in members:
            limits, found = member.limits, member.conditions
            power_w = Decimal(limits.power_uw) / MICROWATT
            if not (found.is_reachable and power_w and found.gain_atto):
                continue
            upload_s = limits.model_bits / _uplink_rate(physics, power_w, Decimal(found.gain_atto) / ATTO)
            left_j = Decimal(found.energy_budget_pj) / PICOJOULE - power_w * upload_s
            if left_j > 0 and limits.cycles:
                payable_hz = (left_j / (Decimal(limits.capacitance) / CAPACITANCE * limits.cycles)).sqrt()
                most_hz = min(limits.initial_cpu_hz, limits.cpu_max_hz or limits.initial_cpu_hz)
                slowest_s = max(slowest_s, upload_s + limits.cycles / min(payable_hz, Decimal(most_hz)))
            elif left_j > 0:
                slowest_s = max(slowest_s, upload_s)
        return _count(slowest_s * NANO)


def _arithmetic() -> Context:
    return Context(
        prec=PRECISION,
        rounding=ROUND_HALF_EVEN,
        Emin=-999_999,
        Emax=999_999,
        capitals=1,
        clamp=0,
        traps=[InvalidOperation, DivisionByZero, Overflow],
    )


def _assess(
    genesis: Genesis,
    members: Sequence[Member],
    schedule: Schedule,
    candidates: Mapping[int, Conditions],
    queue_nano: Sequence[int],
) -> Assessment:
    physics, exchange_s = genesis.physics, {}
    energy_j = [Decimal(0)] * len(members)
    for client, cpu_hz, power_uw in zip(schedule.selected, schedule.cpu_hz, schedule.power_uw, strict=True):
        limits = members[client].limits
        power_w = Decimal(power_uw) / MICROWATT
        upload_s = limits.model_bits / _uplink_rate(physics, power_w, Decimal(candidates[client].gain_atto) / ATTO)
        capacitance = Decimal(limits.capacitance) / CAPACITANCE
        training_s = Decimal(limits.cycles) / cpu_hz if limits.cycles else Decimal(0)  # Eq. 6
        exchange_s[client] = training_s + upload_s
        training_j = _HALF * capacitance * limits.cycles * cpu_hz**2  # Eq. 7
        energy_j[client] += training_j + power_w * upload_s  # Eq. 10
    mining_s = Decimal(physics.work_cycles) / sum(schedule.mining_hz)  # Eq. 11
    for client, mining_hz in enumerate(schedule.mining_hz):
        if mining_hz:
            capacitance = Decimal(members[client].limits.capacitance) / CAPACITANCE
            energy_j[client] += _HALF * capacitance * mining_s * mining_hz**3  # Eq. 12
    longest_s = max(exchange_s.values())
    delay_s = longest_s + mining_s + Decimal(physics.overhead_ns) / NANO  # Eq. 13
    modelled = Modelled(
        exchange_ns=_count(longest_s * NANO),
        mining_ns=_count(mining_s * NANO),
        delay_ns=_count(delay_s * NANO),
        energy_pj=tuple(_count(energy * PICOJOULE) for energy in energy_j),
    )
    owed_nano = sum(queue_nano[client] for client in schedule.selected)
    objective_nano = _count(physics.tradeoff_nano * delay_s - owed_nano)  # Eq. 23
    breaches = [
        *_find_too_slow(exchange_s, genesis.law.max_exchange_ns),
        *_find_overdrawn(energy_j, candidates),
        *_find_too_large(modelled, objective_nano),
    ]
    if any(breach.constraint == "form" for breach in breaches):
        return Assessment(no_costs(len(members)), 0, tuple(breaches))
    return Assessment(modelled, objective_nano, tuple(breaches))


def _uplink_rate(physics: Physics, power_w: Decimal, gain: Decimal) -> Decimal:
    """Uplink rate (bit/s): B log2(1 + P_i h_i / (B N0)), Eq. 8."""
    noise_w = physics.bandwidth_hz * (Decimal(physics.noise) / NOISE)
    return physics.bandwidth_hz * (1 + power_w * gain / noise_w).ln() / Decimal(2).ln()


def _count(value: Decimal) -> int:
    return int(value.to_integral_value(ROUND_HALF_EVEN))


def _find_outsiders(schedule: Schedule, candidates: Mapping[int, Conditions]) -> list[Breach]:
    active = {*schedule.selected, *(client for client, hz in enumerate(schedule.mining_hz) if hz)}
    return [
        Breach("C1", client, "trains or mines", "idle: it did not report, rests or is out of reach")
        for client in sorted(active)
        if client not in candidates
    ]


def _find_too_few(genesis: Genesis, schedule: Schedule) -> list[Breach]:
    found, needed = len(schedule.selected), genesis.physics.min_clients
    return [] if found >= needed else [Breach("C2", None, f"{found} clients train", f"at least {needed}")]


def _find_above_caps(members: Sequence[Member], schedule: Schedule) -> list[Breach]:
    breaches = []

    def judge(client: int, name: str, found: int, most: int | None) -> None:
        if most is not None and found > most:
            breaches.append(Breach("cap", client, f"{name} {found}", f"at most {most}"))

    for client, cpu_hz, power_uw in zip(schedule.selected, schedule.cpu_hz, schedule.power_uw, strict=True):
        limits = members[client].limits
        judge(client, "cpu_hz", cpu_hz, limits.cpu_max_hz)
        judge(client, "power_uw", power_uw, max(limits.power_uw, limits.power_max_uw))
    for client, mining_hz in enumerate(schedule.mining_hz):
        judge(client, "mining_hz", mining_hz, members[client].limits.mining_max_hz)
    return breaches


def _find_endless(members: Sequence[Member], schedule: Schedule, candidates: Mapping[int, Conditions]) -> list[Breach]:
    """Breaches that make a round endless: training at 0 Hz, an upload at rate 0, no miner."""
    breaches = []
    for client, cpu_hz, power_uw in zip(schedule.selected, schedule.cpu_hz, schedule.power_uw, strict=True):
        if members[client].limits.cycles and not cpu_hz:
            breaches.append(Breach("form", client, "trains at 0 Hz", "a frequency above 0"))
        if not power_uw or not candidates[client].gain_atto:
            breaches.append(Breach("form", client, "uploads at rate 0", "a power and a gain above 0"))
    if not any(schedule.mining_hz):
        breaches.append(Breach("form", None, "nobody mines", "a mining frequency above 0"))
    return breaches


def _find_too_slow(exchange_s: Mapping[int, Decimal], most_ns: int) -> list[Breach]:
    return [
        Breach("exchange", client, f"trains and uploads for {needed_s:.12g} s", f"at most {most_ns / NANO:.12g} s")
        for client, needed_s in exchange_s.items()
        if needed_s * NANO > most_ns
    ]


def _find_overdrawn(energy_j: Sequence[Decimal], candidates: Mapping[int, Conditions]) -> list[Breach]:
    breaches = []
    for client, spent_j in enumerate(energy_j):
        if spent_j:
            budget_j = Decimal(candidates[client].energy_budget_pj) / PICOJOULE
            if spent_j > budget_j * (1 + TOLERANCE):
                breaches.append(Breach("C3", client, f"{spent_j:.12g} J spent", f"at most {budget_j:.12g} J"))
    return breaches


def _find_too_large(modelled: Modelled, objective_nano: int) -> list[Breach]:
    largest = max(modelled.delay_ns, *modelled.energy_pj, abs(objective_nano))
    if largest <= INT_LIMIT:
        return []
    return [Breach("form", None, f"costs of {largest:.3e} units", f"at most {INT_LIMIT:.3e}")]
