"""Rounds of learning by bdfl, plain PyTorch, Flower and pfl-research: the same batches, in one run, taking turns."""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import msgspec

from bdfl.scenario import Scenario, dump_scenario
from benchmarks.learning.cases import crowd_scenario, digits_scenario, images_scenario, make_workload
from benchmarks.learning.gate import SCHEDULE, TRAIN
from benchmarks.learning.sides import Round, Side, SideFailed, SideProcess, Worth, open_side
from benchmarks.learning.workload import save_workload
from benchmarks.results import Result, make_result

INSTALL = "make bench-learning"
MEASURED = "measured"
CROWD = 1000  # clients in one process
_CROWD_ASKED_GIB = 2.0
_BFLOAT16 = "bfloat16"
_SCENARIO_FILE, _WORKLOAD_FILE = "scenario.toml", "workload.npz"

Report = Callable[[str], None]


def bdfl_side(kind: str, processes: int, threads: int) -> Side:
    """bdfl's learning without its network, with that engine; or `bfloat16`, the engine `loop` in that precision."""
    return Side(f"bdfl {kind}", "benchmarks.learning.bdfl_side", kind, processes, threads)


def plain_side(kind: str, processes: int, threads: int) -> Side:
    """PyTorch by hand: `loop`, `bfloat16` or `vmap`."""
    return Side(f"plain {kind}", "benchmarks.learning.plain_side", kind, processes, threads)


def flower_side(kind: str, processes: int, threads: int) -> Side:
    """Flower: `usual`, or `eager` to ask for replies every 2 ms instead of every 100 ms."""
    name = "flower" if kind == "usual" else f"flower {kind}"
    return Side(name, "benchmarks.learning.flower_side", kind, processes, threads, "flower")


def pfl_side(processes: int, threads: int) -> Side:
    """pfl-research."""
    return Side("pfl", "benchmarks.learning.pfl_side", "usual", processes, threads, "pfl")


DIGITS_SIDES = (
    bdfl_side("vmap", 1, 1),
    bdfl_side("vmap", 1, 2),
    bdfl_side("loop", 1, 1),
    bdfl_side("loop", 2, 1),
    plain_side("loop", 1, 1),
    plain_side("loop", 1, 2),
    plain_side("loop", 2, 1),
    plain_side("vmap", 1, 1),
    plain_side("vmap", 1, 2),
    flower_side("usual", 2, 1),
    flower_side("eager", 2, 1),
    pfl_side(1, 1),
    pfl_side(1, 2),
    pfl_side(2, 1),
)
IMAGES_SIDES = (
    bdfl_side("loop", 1, 2),
    bdfl_side("loop", 2, 1),
    bdfl_side(_BFLOAT16, 1, 2),
    bdfl_side(_BFLOAT16, 2, 1),
    plain_side("loop", 1, 2),
    plain_side("loop", 2, 1),
    plain_side(_BFLOAT16, 1, 2),
    plain_side(_BFLOAT16, 2, 1),
    flower_side("usual", 1, 2),
    flower_side("usual", 2, 1),
    pfl_side(1, 2),
    pfl_side(2, 1),
)
_MEASURE = "plain loop"


@dataclass(frozen=True)
class Plan:
    """How often: untimed rounds after the first, then turns in which every side plays its timed rounds.

    `untimed_rounds` begin every turn, for caches that others have used meanwhile.
    """

    warm_up: int
    turns: int
    untimed_rounds: int
    rounds: int

    @property
    def num_rounds(self) -> int:
        """Rounds that a side plays in all."""
        return 1 + self.warm_up + self.turns * (self.untimed_rounds + self.rounds)


@dataclass(frozen=True)
class Case:
    """A workload, who plays it how often, and what may be spent on what is not SGD, where something is asked."""

    scenario: Scenario
    sides: tuple[Side, ...]
    plan: Plan
    asked_ms: float | None = None
    asked_percent: float | None = None


@dataclass
class Found:
    """What one side did."""

    side: Side
    state: str = MEASURED
    first_round_s: float | None = None
    peak_bytes: int | None = None
    turns: list[list[Round]] = field(default_factory=list)
    worth: Worth | None = None

    @property
    def rounds(self) -> list[Round]:
        return [round for turn in self.turns for round in turn]

    @property
    def turn_medians_s(self) -> list[float]:
        return [median(round.seconds for round in turn) for turn in self.turns]

    @property
    def median_s(self) -> float | None:
        return median(round.seconds for round in self.rounds) if self.rounds else None


@dataclass(frozen=True)
class SpeedRow:
    """One side: seconds of a round and of everything up to the end of the first, memory, and speed against plain."""

    side: str
    uses: str
    state: str
    rounds: int
    median_s: float | None
    worst_s: float | None
    first_round_s: float | None
    peak_mb: float | None
    speed: float | None
    least_speed: float | None
    greatest_speed: float | None
    test_accuracy: float | None
    test_loss: float | None


@dataclass(frozen=True)
class OtherRow:
    """What bdfl does in a round beside training its clients."""

    side: str
    uses: str
    rounds: int
    round_ms: float
    schedule_ms: float
    aggregate_and_account_ms: float
    other_ms: float
    worst_other_ms: float
    other_percent: float
    asked_ms: float | None
    asked_percent: float | None


@dataclass(frozen=True)
class CrowdRow:
    """Many clients in one process."""

    side: str
    uses: str
    clients: int
    samples_each: int
    round_s: float
    peak_gib: float | None
    asked_gib: float


def measure_learning(*, quick: bool, seed: int, report: Report) -> list[Result]:
    """All tables: speed and the rest of a round for both workloads, then the memory of many clients."""
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="bdfl-") as name:
        folder = Path(name)
        for case in plan_cases(folder, quick=quick, seed=seed):
            results += measure_case(case, folder, report)
        results.append(measure_crowd(crowd_scenario(seed, folder, CROWD), 1 if quick else 3, folder, report))
    return results


def measure_loop(*, quick: bool, seed: int, report: Report) -> list[Result]:
    """The paper's network by bdfl and by plain PyTorch alone, in both precisions and with two batches."""
    sides = tuple(side for side in IMAGES_SIDES if side.environment is None)
    plan = Plan(warm_up=1, turns=2 if quick else 10, untimed_rounds=0, rounds=2)
    results: list[Result] = []
    for batch in (64, 32):
        with tempfile.TemporaryDirectory(prefix="bdfl-") as name:
            scenario = msgspec.structs.replace(images_scenario(seed, Path(name), batch), name=f"paper-cnn-{batch}")
            results += measure_case(Case(scenario, sides, plan, asked_percent=3.0), Path(name), report)
    return results


def plan_cases(folder: Path, *, quick: bool, seed: int) -> list[Case]:
    """The two workloads."""
    small = Plan(warm_up=5, turns=3, untimed_rounds=1, rounds=5) if quick else Plan(10, 10, 2, 10)
    large = Plan(warm_up=0, turns=2, untimed_rounds=0, rounds=1) if quick else Plan(1, 4, 0, 2)
    return [
        Case(digits_scenario(seed), DIGITS_SIDES, small, asked_ms=20.0),
        Case(images_scenario(seed, folder), IMAGES_SIDES, large, asked_percent=3.0),
    ]


def measure_case(case: Case, folder: Path, report: Report) -> list[Result]:
    """Speed of all sides, and what bdfl spends beside training."""
    found = take_turns(case, folder, report)
    name, clients = case.scenario.name, case.scenario.clients.count
    settings = case.scenario.learning
    shape = f"{clients} clients, {case.scenario.compute.local_updates} updates, batch {settings.batch}"
    results = [make_result(f"learning-{name}", f"Rounds of {name}: {shape}", speed_rows(found), _notes(found))]
    others = [_other_row(one, case) for one in found if _tells_phases(one)]
    if others:
        notes = [
            "All of a round of learning but the training of its clients, which is its SGD; the chain is another table.",
            "Scheduled by drc with no choice, so that all clients train; medians, so parts need not add up.",
        ]
        results.append(make_result(f"learning-{name}-other", f"Rounds of {name}: what is not SGD", others, notes))
    return results


def take_turns(case: Case, folder: Path, report: Report) -> list[Found]:
    """What every side did with the workload."""
    place = folder / case.scenario.name
    place.mkdir()
    (place / _SCENARIO_FILE).write_text(dump_scenario(case.scenario), encoding="utf-8")
    save_workload(make_workload(case.scenario, case.plan.num_rounds), place / _WORKLOAD_FILE)
    return play_turns(case.sides, case.plan, case.scenario.name, lambda side: _material(side, place), report)


def play_turns(
    sides: Sequence[Side], plan: Plan, name: str, material: Callable[[Side], Path], report: Report
) -> list[Found]:
    """What every side did: all are alive, one computes, the others stand still; every second turn goes backwards.

    A side works in the folder of its material.
    """
    found = [Found(side) for side in sides]
    with ExitStack() as stack:
        alive: list[tuple[Found, SideProcess]] = []
        for one in found:
            report(f"learning: {name}, {one.side.name} ({one.side.uses}) begins")
            if not one.side.is_installed:
                one.state = f"not installed: {INSTALL}"
                continue
            path = material(one.side)
            process = stack.enter_context(open_side(one.side, path, path.parent))
            if _attempt(one, process, lambda played=process: _warm_up(played, plan.warm_up), report):
                one.first_round_s = process.first_round_s
                alive.append((one, process))
        for turn in range(plan.turns):
            report(f"learning: {name}, turn {turn + 1} of {plan.turns}")
            for one, process in alive if turn % 2 == 0 else alive[::-1]:
                if one.state == MEASURED:
                    _attempt(one, process, lambda one=one, played=process: _take_turn(one, played, plan), report)
        for one, process in alive:
            if one.state == MEASURED:
                _attempt(one, process, lambda one=one, played=process: _finish(one, played), report)
    return found


def precision_notes(found: Sequence[Found]) -> list[str]:
    """Speed in bfloat16 against the plain loop in bfloat16, for as many processes and threads."""
    notes = []
    for one in found:
        plain = next((other for other in found if other.side == plain_side(_BFLOAT16, *_uses(one))), None)
        if one.side == bdfl_side(_BFLOAT16, *_uses(one)) and plain is not None and (speeds := _speeds(one, plain)):
            notes.append(
                f"{one.side.name} ({one.side.uses}) has {median(speeds):.3g} times the speed of {plain.side.name},"
                f" {min(speeds):.3g} to {max(speeds):.3g} in single turns."
            )
    return notes


def speed_rows(found: Sequence[Found]) -> list[SpeedRow]:
    """A row for every side; speeds are ratios of medians of the same turn to the plain loop that uses as much."""
    return [_speed_row(one, _measure_of(one, found)) for one in found]


def measure_crowd(scenario: Scenario, num_rounds: int, folder: Path, report: Report) -> Result:
    """Memory and time of a round in which very many clients train in one process."""
    place = folder / scenario.name
    place.mkdir()
    (place / _SCENARIO_FILE).write_text(dump_scenario(msgspec.structs.replace(scenario, rounds=10)), encoding="utf-8")
    rows = []
    for side in (bdfl_side("loop", 1, 1), bdfl_side("vmap", 1, 1)):
        report(f"learning: {scenario.clients.count:,} clients, {side.name}")
        with open_side(side, place / _SCENARIO_FILE, place) as process:
            process.play()
            seconds = median(process.play().seconds for _ in range(num_rounds))
            process.finish()
        rows.append(
            CrowdRow(
                side.name,
                side.uses,
                clients=scenario.clients.count,
                samples_each=int(scenario.clients.samples),
                round_s=seconds,
                peak_gib=None if process.peak_bytes is None else process.peak_bytes / 2**30,
                asked_gib=_CROWD_ASKED_GIB,
            )
        )
    notes = ["Resident memory of the whole process at its peak, with Python, PyTorch and everybody's data."]
    return make_result(
        "learning-crowd", f"Rounds of digits-sized clients, {scenario.clients.count:,} of them", rows, notes
    )


def _material(side: Side, place: Path) -> Path:
    return place / (_SCENARIO_FILE if side.name.startswith("bdfl") else _WORKLOAD_FILE)


def _attempt(one: Found, process: SideProcess, action: Callable[[], None], report: Report) -> bool:
    """Whether the side did it; one that fails plays no further part, and its row says so."""
    try:
        with process.awake():
            action()
            process.look()
    except SideFailed as error:
        one.state = "failed"
        report(f"learning: {one.side.name} ({one.side.uses}) {error}")
        return False
    one.peak_bytes = process.peak_bytes
    return True


def _warm_up(process: SideProcess, num_rounds: int) -> None:
    for _ in range(1 + num_rounds):
        process.play()


def _take_turn(one: Found, process: SideProcess, plan: Plan) -> None:
    for _ in range(plan.untimed_rounds):
        process.play()
    one.turns.append([process.play() for _ in range(plan.rounds)])


def _finish(one: Found, process: SideProcess) -> None:
    one.worth = process.finish()


def _measure_of(one: Found, found: Sequence[Found]) -> Found | None:
    """The plain loop that uses as many processes and threads, else the first."""
    loops = [other for other in found if other.side.name == _MEASURE and other.turns]
    return next((loop for loop in loops if loop.side.uses == one.side.uses), loops[0] if loops else None)


def _speed_row(one: Found, measure: Found | None) -> SpeedRow:
    seconds = [round.seconds for round in one.rounds]
    speeds = [] if measure is None else _speeds(one, measure)
    return SpeedRow(
        side=one.side.name,
        uses=one.side.uses,
        state=one.state,
        rounds=len(seconds),
        median_s=one.median_s,
        worst_s=max(seconds, default=None),
        first_round_s=one.first_round_s,
        peak_mb=None if one.peak_bytes is None else one.peak_bytes / 1e6,
        speed=median(speeds) if speeds else None,
        least_speed=min(speeds, default=None),
        greatest_speed=max(speeds, default=None),
        test_accuracy=None if one.worth is None else one.worth.accuracy,
        test_loss=None if one.worth is None else one.worth.loss,
    )


def _speeds(one: Found, measure: Found) -> list[float]:
    """Speed against another side, turn by turn."""
    pairs = zip(measure.turn_medians_s, one.turn_medians_s, strict=False)  # one may have failed on the way
    return [measure_s / side_s for measure_s, side_s in pairs]


def _uses(one: Found) -> tuple[int, int]:
    return one.side.processes, one.side.threads


def _tells_phases(one: Found) -> bool:
    return bool(one.rounds) and bool(one.rounds[0].phases_s)


def _other_row(one: Found, case: Case) -> OtherRow:
    rounds = one.rounds
    schedule_s = [round.phases_s[SCHEDULE] for round in rounds]
    other_s = [round.seconds - round.phases_s[TRAIN] for round in rounds]
    after_s = [other - schedule for other, schedule in zip(other_s, schedule_s, strict=True)]
    return OtherRow(
        side=one.side.name,
        uses=one.side.uses,
        rounds=len(rounds),
        round_ms=1e3 * median(round.seconds for round in rounds),
        schedule_ms=1e3 * median(schedule_s),
        aggregate_and_account_ms=1e3 * median(after_s),
        other_ms=1e3 * median(other_s),
        worst_other_ms=1e3 * max(other_s),
        other_percent=100 * median(other / round.seconds for other, round in zip(other_s, rounds, strict=True)),
        asked_ms=case.asked_ms,
        asked_percent=case.asked_percent,
    )


def _notes(found: Sequence[Found]) -> list[str]:
    notes = [
        "`uses` is processes x threads of each; `speed` is the plain loop's time over the side's, in the same turn, for"
        " the plain loop that uses as much (1 x 1 where there is none): above 1 is faster than the plain loop.",
        "`bfloat16` computes the passes in that precision, by `torch.autocast`; everybody else computes in float32.",
        "Everybody trains on the same mini-batches from the same first model for as many rounds, so test accuracy and"
        " loss agree up to rounding. Nobody evaluates in a timed round; convolutions run in channels_last everywhere.",
        "`first round` counts from starting the process; `peak` adds up what each process of a side held at most.",
        "All sides live throughout and take turns; those whose turn it is not are stopped and use no processor.",
        "flower: Message API, train on all clients; its link asks for work and replies every 0.1 s each, which a short"
        " round feels; `eager` shortens the second to 2 ms, the first cannot be set.",
    ]
    notes += [f"{name}: {versions}." for name, versions in _versions(found).items()]
    return notes + precision_notes(found) + _best_notes(found)


def _versions(found: Sequence[Found]) -> dict[str, str]:
    return {_family(one): one.worth.versions for one in found if one.worth is not None}


def _best_notes(found: Sequence[Found]) -> list[str]:
    """The fastest of each family, so that nobody is judged by a setting that does not suit it."""
    best: dict[str, Found] = {}
    for one in found:
        if one.median_s is not None:
            best.setdefault(_family(one), one)
            best[_family(one)] = min(best[_family(one)], one, key=lambda each: each.median_s or 0.0)
    ours = best.get("bdfl")
    if ours is None or ours.median_s is None:
        return []
    shown = [f"{one.side.name} ({one.side.uses}) {one.median_s:.3g} s" for one in best.values()]
    ratios = [
        f"{(one.median_s or 0.0) / ours.median_s:.2f} times as long as bdfl's: {name}"
        for name, one in best.items()
        if one is not ours
    ]
    return [f"The fastest of each: {', '.join(shown)}.", *([f"A round takes {'; '.join(ratios)}."] if ratios else [])]


def _family(one: Found) -> str:
    return one.side.name.split()[0]
