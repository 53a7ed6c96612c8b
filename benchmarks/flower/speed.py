"""Rounds of bdfl and of Flower's simulation on the same client code, data and rounds, taking turns; memory; bytes."""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import msgspec
import numpy as np

from bdfl.learning.data import load_data
from bdfl.learning.models import draw_model
from bdfl.learning.partition import draw_partition
from bdfl.learning.torch_model import find_scaling, input_shape, is_image, layout_of
from bdfl.scenario import Clients, DataChoice, Engine, LocalUnit, Scenario, dump_scenario
from benchmarks.flower.bdfl_side import SCENARIO_FILE
from benchmarks.flower.task import Task, save_task
from benchmarks.learning.cases import digits_scenario, images_scenario
from benchmarks.learning.sides import Side, SideFailed, cache_of, open_side
from benchmarks.learning.speed import MEASURED, Found, Plan, Report, play_turns
from benchmarks.results import Result, make_result

IMAGES_VARIABLE = "BDFL_BENCH_IMAGES"  # a folder such as CIFAR-10's, instead of drawn images
MEMORY_ASKED = 1 / 3
USUAL, EAGER = "usual", "eager"
_TASK_FILE = "task.npz"
_AGAIN_ROUNDS = 3  # after which models are compared, byte for byte


def own_side(processes: int, threads: int) -> Side:
    """`bdfl run` with bdfl's learner."""
    return Side("bdfl, own learner", "benchmarks.flower.bdfl_side", "own", processes, threads)


def client_side(processes: int, threads: int) -> Side:
    """`bdfl run --flower` with the very client."""
    return Side("bdfl, same client", "benchmarks.flower.bdfl_side", "client", processes, threads)


def flower_side(kind: str, processes: int, threads: int) -> Side:
    """Flower's simulation with it; `eager` asks for replies every 2 ms instead of every 100 ms."""
    name = "flower" if kind == USUAL else f"flower {kind}"
    return Side(name, "benchmarks.flower.flower_side", kind, processes, threads, "flower")


@dataclass(frozen=True)
class Case:
    """A task, who plays it how often, and how many times Flower's rounds a second are asked of each."""

    scenario: Scenario
    plan: Plan
    sides: tuple[Side, ...]
    asked: dict[str, float]  # by the name of a side


@dataclass(frozen=True)
class SpeedRow:
    """One side: its rounds and memory against the fastest Flower as it comes; also the hurried and the smallest one."""

    side: str
    uses: str
    state: str
    rounds: int
    median_s: float | None
    rounds_per_s: float | None
    speed: float | None
    least_speed: float | None
    asked_speed: float | None
    against_eager: float | None
    peak_mb: float | None
    memory: float | None
    asked_memory: float | None
    of_least_memory: float | None
    test_accuracy: float | None
    test_loss: float | None


@dataclass(frozen=True)
class AgainRow:
    """One side, twice from the beginning."""

    side: str
    uses: str
    state: str
    same_bytes: str
    rounds: int
    first: str
    second: str


def measure_flower(*, quick: bool, seed: int, report: Report) -> list[Result]:
    """All tables: speed and memory for both tasks, and whether a second run ends in the same bytes."""
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="bdfl-") as name:
        folder = Path(name)
        cases = plan_cases(folder, quick=quick, seed=seed)
        for case in cases:
            results.append(measure_case(case, folder, report))
        results.append(measure_again(cases[0], folder, report))
    return results


def plan_cases(folder: Path, *, quick: bool, seed: int) -> list[Case]:
    """Digits, 8 clients of 160 in 4 epochs of batches of 32; the paper's network, 4 clients of 1,280 in one of 64."""
    small = Plan(warm_up=3, turns=3, untimed_rounds=1, rounds=5) if quick else Plan(10, 8, 2, 10)
    large = Plan(warm_up=0, turns=2, untimed_rounds=0, rounds=1) if quick else Plan(1, 4, 0, 2)
    digits = digits_scenario(seed)
    digits = msgspec.structs.replace(
        digits,
        rounds=2 + small.num_rounds,
        clients=Clients(count=8, min_selected=8, samples=160),
        learning=_by_epochs(digits, 4, Engine.VMAP),
    )
    images = images_scenario(seed, folder)
    source = os.environ.get(IMAGES_VARIABLE)
    images = msgspec.structs.replace(
        images,
        rounds=2 + large.num_rounds,
        clients=Clients(count=4, min_selected=4, samples=1280),
        data=images.data if source is None else DataChoice(source=str(Path(source).absolute())),
        learning=_by_epochs(images, 1, Engine.LOOP),
    )
    return [
        Case(
            digits,
            small,
            (own_side(1, 1), client_side(1, 1), flower_side(USUAL, 2, 1), flower_side(EAGER, 2, 1)),
            {own_side(1, 1).name: 4.0, client_side(1, 1).name: 1.5},
        ),
        Case(
            images,
            large,
            (own_side(1, 2), client_side(1, 2), flower_side(USUAL, 1, 2), flower_side(USUAL, 2, 1)),
            {own_side(1, 2).name: 1.2},
        ),
    ]


def make_task(scenario: Scenario, cache: Path | None = None) -> Task:
    """The scenario's very shares of data and first model, for whoever runs the client."""
    data, settings = load_data(scenario.data, cache=cache), scenario.learning
    partition = draw_partition(scenario, data.train_labels, data.num_labels)
    model = draw_model(settings, input_shape(data), data.num_labels, scenario.seed)
    state = model.state_dict()
    held = np.concatenate(partition.indices)
    scaling = find_scaling(data.train_inputs, scenario.data.normalise)
    inputs, test_inputs = (_ready(chosen, scaling) for chosen in (data.train_inputs[held], data.test_inputs))
    return Task(
        model=settings.model,
        learning_rate=settings.learning_rate,
        epochs=settings.local_steps or 1,
        batch=settings.batch,
        inputs=inputs,
        labels=data.train_labels[held],
        owners=np.repeat(np.arange(len(partition.indices)), [len(one) for one in partition.indices]),
        test_inputs=test_inputs,
        test_labels=data.test_labels,
        initial=np.concatenate([state[name].numpy().reshape(-1) for name in layout_of(model).names]),
    )


def measure_case(case: Case, folder: Path, report: Report) -> Result:
    """Speed and memory of all sides."""
    place = _prepare(case, folder)
    found = play_turns(case.sides, case.plan, case.scenario.name, lambda side: place / _TASK_FILE, report)
    clients, settings = case.scenario.clients, case.scenario.learning
    shape = f"{clients.count} clients of {clients.samples}, {settings.local_steps} epochs, batch {settings.batch}"
    title = f"Rounds of {case.scenario.name} by bdfl and by Flower: {shape}"
    return make_result(f"flower-{case.scenario.name}", title, speed_rows(found, case.asked), _notes(found))


def measure_again(case: Case, folder: Path, report: Report) -> Result:
    """Whether a second run from the beginning gives the same bytes."""
    place = folder / case.scenario.name
    rows = [_play_twice(side, place / _TASK_FILE, report) for side in case.sides[:3]]
    notes = [
        "Digests of the model after as many rounds: bdfl's as its chain has it, Flower's over the bytes of all arrays.",
        "The client seeds nothing itself: bdfl seeds it from (seed, round, client), Flower leaves that to the client.",
    ]
    return make_result("flower-again", "The same run twice, each time in new processes", rows, notes)


def speed_rows(found: Sequence[Found], asked: dict[str, float]) -> list[SpeedRow]:
    """A row for every side; ratios are to the usual Flower with the shortest rounds, unless they say otherwise."""
    flowers = [one for one in found if one.side.environment is not None and one.median_s is not None]
    usual = [one for one in flowers if one.side.kind == USUAL]
    fastest = min(usual, key=lambda one: one.median_s or 0.0, default=None)
    eager = next((one for one in flowers if one.side.kind == EAGER), None)
    smallest = min((one.peak_bytes for one in flowers if one.peak_bytes is not None), default=None)
    return [_speed_row(one, fastest, eager, smallest, asked.get(one.side.name)) for one in found]


def _speeds(one: Found, other: Found | None) -> list[float]:
    """How many times the other's rounds a side made, turn by turn; one may have failed on the way."""
    pairs = [] if other is None else zip(other.turn_medians_s, one.turn_medians_s, strict=False)
    return [other_s / side_s for other_s, side_s in pairs]


def _share(part: int | None, whole: int | None) -> float | None:
    return None if part is None or whole is None else part / whole


def _speed_row(
    one: Found, fastest: Found | None, eager: Found | None, smallest: int | None, asked: float | None
) -> SpeedRow:
    speeds, eager_speeds = _speeds(one, fastest), _speeds(one, eager)
    is_ours = one.side.environment is None
    return SpeedRow(
        side=one.side.name,
        uses=one.side.uses,
        state=one.state,
        rounds=len(one.rounds),
        median_s=one.median_s,
        rounds_per_s=None if one.median_s is None else 1 / one.median_s,
        speed=median(speeds) if speeds else None,
        least_speed=min(speeds, default=None),
        asked_speed=asked,
        against_eager=median(eager_speeds) if eager_speeds else None,
        peak_mb=None if one.peak_bytes is None else one.peak_bytes / 1e6,
        memory=_share(one.peak_bytes, None if fastest is None else fastest.peak_bytes),
        asked_memory=MEMORY_ASKED if is_ours else None,
        of_least_memory=_share(one.peak_bytes, smallest),
        test_accuracy=None if one.worth is None else one.worth.accuracy,
        test_loss=None if one.worth is None else one.worth.loss,
    )


def _play_twice(side: Side, task: Path, report: Report) -> AgainRow:
    digests: list[str] = []
    state = MEASURED if side.is_installed else "not installed: make bench-flower"
    for turn in (1, 2) if side.is_installed else ():
        report(f"flower: {side.name}, run {turn} of 2")
        try:
            with open_side(side, task, task.parent) as process:
                for _ in range(_AGAIN_ROUNDS):
                    process.play()
                digests.append(process.finish().digest)
        except SideFailed as error:
            state = "failed"
            report(f"flower: {side.name} {error}")
    is_known = len(digests) == 2
    same = ("yes" if digests[0] == digests[1] else "no") if is_known else "-"
    first, second = (digest[:12] for digest in digests) if is_known else ("-", "-")
    return AgainRow(side.name, side.uses, state, same, _AGAIN_ROUNDS, first, second)


def _prepare(case: Case, folder: Path) -> Path:
    place = folder / case.scenario.name
    place.mkdir()
    (place / SCENARIO_FILE).write_text(dump_scenario(case.scenario), encoding="utf-8")
    save_task(make_task(case.scenario, cache_of(place)), place / _TASK_FILE)
    return place


def _ready(inputs: np.ndarray, scaling: object) -> np.ndarray:
    """Inputs as bdfl's models see them, images with channels first."""
    ready = inputs.astype(np.float32)
    if scaling is not None:
        ready = (ready - scaling.centre) * scaling.factor
    return np.ascontiguousarray(ready.transpose(0, 3, 1, 2)) if is_image(inputs) else ready


def _by_epochs(scenario: Scenario, epochs: int, engine: Engine) -> "msgspec.Struct":
    return msgspec.structs.replace(scenario.learning, unit=LocalUnit.EPOCHS, local_steps=epochs, engine=engine)


def _notes(found: Sequence[Found]) -> list[str]:
    notes = [
        "A round of bdfl is one of `bdfl run`: besides training it schedules, signs, verifies, mines, votes, stores and"
        " records, for all members. Flower's is its Message API with federated averaging on all clients, and no more.",
        "`same client` is the client that Flower runs, byte for byte the same file; `own learner` trains as many epochs"
        " on the same shares from the same first model. Batches are drawn by each in its own way.",
        "`speed`, turn by turn, and `memory` are against the usual Flower with the shortest rounds; `of least memory`"
        " against whichever Flower needs least."
        " `uses` is processes x threads of each; `peak` adds up what each process of a side held at most in its rounds."
        " Pictures are decoded before either side begins, and models judged after the last look at memory.",
        "All sides live throughout and take turns; those whose turn it is not are stopped. Nobody evaluates in a timed"
        " round; accuracy and loss are those of the last model on the common test set.",
        "flower eager is Flower with a setting that its simulation does not offer: it asks for replies every 2 ms,"
        " not every 100 ms.",
    ]
    versions = {one.side.name.split(",")[0].split()[0]: one.worth.versions for one in found if one.worth is not None}
    return notes + [f"{name}: {text}." for name, text in versions.items()]
