"""What the network and the chain cost in a round of `bdfl run`, beside its training: all of it, and by its parts."""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from itertools import pairwise
from pathlib import Path
from statistics import median
from unittest.mock import patch

import msgspec

from bdfl import encoding, identity
from bdfl.experiment.learner import Learner
from bdfl.experiment.network_run import NetworkRun
from bdfl.experiment.run_folder import RunFolder, create_run_folder
from bdfl.experiment.training_run import prepare_run, train_run
from bdfl.learning.trainer_pool import open_trainer
from bdfl.learning.training import NO_PERSONAL, Evaluation, FullGradient, LocalResult, Personal, Trainer
from bdfl.learning.weights import Vector
from bdfl.ledger import chain, schedule
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.records import LearningRound, RoundRecord
from bdfl.scenario import Clients, Engine, Scenario
from bdfl.transports import simulated
from benchmarks.learning.cases import digits_scenario, images_scenario
from benchmarks.results import Result, make_result

Report = Callable[[str], None]
TRAINING = "training"
OTHER = "messages, state, encoding"
DIGITS_ASKED_MS = 50.0
IMAGES_ASKED_PERCENT = 5.0


@dataclass(frozen=True)
class Case:
    """A scenario, how many of its rounds count, and what the chain may cost."""

    scenario: Scenario
    rounds: int
    workers: int
    asked_ms: float | None = None
    asked_percent: float | None = None


@dataclass(frozen=True)
class RoundRow:
    """Medians over rounds (ms): the whole round, its training, and all that is not."""

    case: str
    members: int
    train: float
    updates: float
    round_ms: float
    training_ms: float
    chain_ms: float
    worst_chain_ms: float
    chain_percent: float
    asked_ms: float | None
    asked_percent: float | None


@dataclass(frozen=True)
class PartRow:
    """Mean over rounds (ms)."""

    case: str
    part: str
    ms: float
    calls: float


@dataclass
class Stopwatch:
    """Seconds and calls of each part, without those of other parts that it calls."""

    seconds: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    _under_way: list[float] = field(default_factory=list)  # seconds that inner parts took, outermost first

    def count(self, part: str, action: Callable[..., object]) -> Callable[..., object]:
        """The same action, measured."""

        @wraps(action)
        def measured(*arguments: object, **options: object) -> object:
            self._under_way.append(0.0)
            began_s = time.perf_counter()
            try:
                return action(*arguments, **options)
            finally:
                took_s = time.perf_counter() - began_s
                inner_s = self._under_way.pop()
                self.seconds[part] = self.seconds.get(part, 0.0) + took_s - inner_s
                self.calls[part] = self.calls.get(part, 0) + 1
                if self._under_way:
                    self._under_way[-1] += took_s

        return measured


_PARTS: Sequence[tuple[object, str, str]] = (
    (identity.Signer, "sign", "signing"),
    (identity, "is_signed", "verifying signatures"),
    (encoding, "digest", "hashing models"),
    (VerificationCache, "decode_model", "reading models"),
    (VerificationCache, "aggregate", "aggregation"),
    (chain, "plan_round", "scheduling"),
    (schedule, "assess_schedule", "costs in decimal"),
    (simulated, "search_nonce", "mining"),
    (ChainStore, "put_blob", "storing"),
    (ChainStore, "append", "storing"),
    (NetworkRun, "advance", "records"),
    (RunFolder, "append", "records"),
    (Learner, "learn", "records"),
    (Learner, "train", "encoding updates"),
)


@contextmanager
def measuring(watch: Stopwatch) -> Iterator[None]:
    """Inside, the parts of a round are measured."""
    with ExitStack() as stack:
        for owner, name, part in _PARTS:
            stack.enter_context(patch.object(owner, name, watch.count(part, getattr(owner, name))))
        yield


class MeasuredTrainer:
    """A trainer whose time counts as training."""

    def __init__(self, trainer: Trainer, watch: Stopwatch) -> None:
        self.layout, self.personal_layout = trainer.layout, trainer.personal_layout
        self.initial_weights = trainer.initial_weights
        self._trainer = trainer
        self._watch = watch

    def train(
        self, weights: Vector, round: int, clients: Sequence[int], personal: Personal = NO_PERSONAL
    ) -> list[LocalResult]:
        train = self._watch.count(TRAINING, self._trainer.train)
        return train(weights, round, clients, personal)  # type: ignore[return-value]

    def evaluate(self, weights: Vector, personal: Personal = NO_PERSONAL) -> Evaluation:
        return self._watch.count(TRAINING, self._trainer.evaluate)(weights, personal)  # type: ignore[return-value]

    def full_gradient(self, weights: Vector) -> FullGradient:
        return self._watch.count(TRAINING, self._trainer.full_gradient)(weights)  # type: ignore[return-value]


def measure_chain(*, quick: bool, seed: int, report: Report) -> list[Result]:
    """Both workloads, in one process each after the other."""
    with tempfile.TemporaryDirectory(prefix="bdfl-") as name:
        return measure_cases(plan_cases(Path(name), quick=quick, seed=seed), Path(name), report)


def plan_cases(folder: Path, *, quick: bool, seed: int) -> list[Case]:
    """Handwritten digits, and the paper's network on drawn images: 8 members, of whom drc chooses who trains."""
    digits, images = digits_scenario(seed), images_scenario(seed, folder)
    learning = msgspec.structs.replace(digits.learning, engine=Engine.VMAP)
    few, many = (msgspec.structs.replace(digits, learning=learning), images)
    rounds = (20, 3) if quick else (100, 12)
    chosen = [
        msgspec.structs.replace(one, clients=Clients(count=8, min_selected=3, samples=samples))
        for one, samples in ((few, 170), (many, 1500))
    ]
    return [
        Case(chosen[0], rounds[0], 1, asked_ms=DIGITS_ASKED_MS),
        Case(chosen[1], rounds[1], 2, asked_percent=IMAGES_ASKED_PERCENT),
    ]


def measure_cases(cases: Sequence[Case], folder: Path, report: Report) -> list[Result]:
    """The rounds of each case, and what their parts take."""
    rows: list[RoundRow] = []
    parts: list[PartRow] = []
    for case in cases:
        report(f"chain: {case.scenario.name}, {case.rounds} rounds of {case.scenario.clients.count} members")
        row, of_case = measure_case(case, folder)
        rows.append(row)
        parts += of_case
    notes = [
        "`bdfl run` without its screen: signing, hashing, verification, scheduling, aggregation, mining at simulation"
        " difficulty, storing and records by all members together, in the process that also trains (`chain`).",
        "`train` is how many clients train in a round, `updates` how many updates its block has, in the mean.",
    ]
    more = [
        "Means over the same rounds. A part counts what it does itself: reading models inside aggregation is reading.",
        "Members of one process share results by digest, so a signature or a model is checked once for all of them.",
    ]
    return [
        make_result("chain", "A round of bdfl run: training and the chain", rows, notes),
        make_result("chain-parts", "A round of bdfl run: what the chain's time goes to", parts, more),
    ]


def measure_case(case: Case, folder: Path) -> tuple[RoundRow, list[PartRow]]:
    """One run; the first round, which starts everything, does not count."""
    scenario = msgspec.structs.replace(case.scenario, rounds=case.rounds + 1)
    federated = prepare_run(scenario)
    watch = Stopwatch()
    marks: list[tuple[float, float]] = []  # when each round was over, and the seconds of training until then
    before: Stopwatch = Stopwatch()

    def note_round(record: RoundRecord, row: LearningRound) -> None:
        if row.round == 1:
            before.seconds, before.calls = dict(watch.seconds), dict(watch.calls)
        marks.append((time.perf_counter(), watch.seconds[TRAINING]))

    with (
        open_trainer(scenario, federated.data, federated.partition, workers=case.workers) as trainer,
        create_run_folder(folder / f"run-{scenario.name}", scenario) as run,
        measuring(watch),
    ):
        record, _ = train_run(federated, MeasuredTrainer(trainer, watch), run, on_settled=note_round)
    round_s = [later[0] - former[0] for former, later in pairwise(marks)]
    training_s = [later[1] - former[1] for former, later in pairwise(marks)]
    chain_s = [whole - part for whole, part in zip(round_s, training_s, strict=True)]
    row = RoundRow(
        case=scenario.name,
        members=scenario.clients.count,
        train=float(record.num_selected.mean()),
        updates=float(record.delivered.sum(axis=1).mean()),
        round_ms=1e3 * median(round_s),
        training_ms=1e3 * median(training_s),
        chain_ms=1e3 * median(chain_s),
        worst_chain_ms=1e3 * max(chain_s),
        chain_percent=100 * median(part / whole for part, whole in zip(chain_s, training_s, strict=True)),
        asked_ms=case.asked_ms,
        asked_percent=case.asked_percent,
    )
    return row, _part_rows(scenario.name, watch, before, sum(round_s), case.rounds)


def _part_rows(case: str, watch: Stopwatch, before: Stopwatch, total_s: float, rounds: int) -> list[PartRow]:
    """The parts of the rounds that count, dearest first; what is left over last."""
    spent_s = {part: seconds - before.seconds.get(part, 0.0) for part, seconds in watch.seconds.items()}
    rows = [
        PartRow(case, part, 1e3 * spent_s[part] / rounds, (watch.calls[part] - before.calls.get(part, 0)) / rounds)
        for part in sorted(spent_s, key=lambda part: -spent_s[part])
        if part != TRAINING
    ]
    return [*rows, PartRow(case, OTHER, 1e3 * (total_s - sum(spent_s.values())) / rounds, float("nan"))]
