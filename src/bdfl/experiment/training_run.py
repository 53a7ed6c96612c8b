"""A run that learns: schedule, train, aggregate, account, round after round, into a folder that can be gone on with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
from numpy.typing import NDArray

from bdfl import __version__
from bdfl.aggregation import Update, aggregate, get_aggregator, min_updates
from bdfl.arrays import PerClientMask
from bdfl.environment import draw_federation, draw_rounds
from bdfl.experiment.run_folder import FORMAT, BadRunFolder, JournalHeader, RunFolder, digest
from bdfl.experiment.simulation import Draws, PlannedRound, collect_rounds, play_rounds
from bdfl.learning.data import DataSet, load_data
from bdfl.learning.participation import participation_of
from bdfl.learning.partition import Partition, draw_partition
from bdfl.learning.training import Evaluation, FullGradient, LocalResult, Outcome, Trainer
from bdfl.learning.weights import Vector, encode_weights
from bdfl.records import LearningRecord, LearningRound, RoundRecord, RunRecord, collect_learning
from bdfl.scenario import Engine, Scenario, scenario_digest
from bdfl.scenario.learning import MLP
from bdfl.scheduling.registry import get_scheduler

Planned = Callable[[PlannedRound], None]
Settled = Callable[[RoundRecord, LearningRound], None]


@dataclass(frozen=True, eq=False)
class Federated:
    """A scenario with real data: who holds what, and all that chance brings to the run."""

    scenario: Scenario
    data: DataSet
    partition: Partition
    draws: Draws


def prepare_run(scenario: Scenario) -> Federated:
    """The scenario's data, dealt out; sizes and participation rates are those of the real data sets."""
    get_scheduler(scenario.scheduler.name, scenario.scheduler.parameters)  # what is wrong is said before any work
    get_aggregator(scenario.learning.aggregation)
    data = load_data(scenario.data)
    partition = draw_partition(scenario, data.train_labels, data.num_labels)
    federation = draw_federation(scenario, partition.samples)
    rates = participation_of(scenario, partition.label_counts)
    draws = Draws(federation, rates, list(draw_rounds(scenario, federation)))
    return Federated(scenario, data, partition, draws)


def default_workers(scenario: Scenario) -> int:
    """Training processes that make a run fast: one per core; a single one where starting more would cost more."""
    settings = scenario.learning
    if settings.engine is Engine.VMAP or settings.model == MLP:
        return 1
    import joblib

    num_cores: int = joblib.cpu_count()
    return max(1, min(num_cores // settings.threads, scenario.clients.count))


def train_run(
    federated: Federated,
    trainer: Trainer,
    folder: RunFolder,
    *,
    on_planned: Planned | None = None,
    on_settled: Settled | None = None,
) -> tuple[RunRecord, LearningRecord]:
    """The whole run; rounds that `folder` has already are not trained again, but checked against the schedule.

    `on_planned` hears of rounds before they are trained, `on_settled` of all rounds, those already there too.
    """
    learner = _Learner(federated, trainer, folder)
    scenario = federated.scenario
    scheduler = get_scheduler(scenario.scheduler.name, scenario.scheduler.parameters)
    records: list[RoundRecord] = []
    for planned in play_rounds(scenario, scheduler, federated.draws):
        is_done = planned.state.round <= len(folder.rounds)
        if not is_done and on_planned is not None:
            on_planned(planned)
        row = folder.rounds[planned.state.round - 1] if is_done else learner.learn(planned)
        records.append(_settle(planned, row, folder))
        if on_settled is not None:
            on_settled(records[-1], row)
    folder.finish()
    return collect_rounds(scenario, federated.draws, records), collect_rows(federated, folder)


def replay_run(federated: Federated, folder: RunFolder) -> tuple[RunRecord, LearningRecord] | None:
    """The records of the rounds that a folder has, without training; none if it has no round yet.

    Raises `BadRunFolder` where its data or its schedule are no longer the same.
    """
    if folder.header is not None and folder.header.data_digest != federated.data.digest:
        raise BadRunFolder(f"{folder.path}: trained on other data than {federated.data.name} now holds")
    scenario = federated.scenario
    scheduler = get_scheduler(scenario.scheduler.name, scenario.scheduler.parameters)
    records: list[RoundRecord] = []
    for planned, row in zip(play_rounds(scenario, scheduler, federated.draws), folder.rounds, strict=False):
        records.append(_settle(planned, row, folder))
    if not records:
        return None
    return collect_rounds(scenario, federated.draws, records), collect_rows(federated, folder)


def _settle(planned: PlannedRound, row: LearningRound, folder: RunFolder) -> RoundRecord:
    if row.selected != planned.clients:
        raise BadRunFolder(
            f"{folder.path}: round {row.round} was trained by clients {row.selected}, the schedule now says"
            f" {planned.clients}: another version of the scheduler?"
        )
    return planned.settle(delivered_mask(row, planned.problem.num_clients))


def collect_rows(federated: Federated, folder: RunFolder) -> LearningRecord:
    """What the rounds in a folder learned, as columns."""
    header = folder.header
    if header is None:
        raise BadRunFolder(f"{folder.path}: no round was begun")
    return collect_learning(
        folder.rounds,
        label_names=federated.data.label_names,
        label_counts=federated.partition.label_counts,
        num_parameters=header.num_parameters,
        initial_accuracy=_or_nan(header.initial_accuracy),
        initial_loss=_or_nan(header.initial_loss),
    )


def delivered_mask(row: LearningRound, num_clients: int) -> PerClientMask:
    """Whose update counts, (clients,): everybody's that trained without diverging.

    A client without data has nothing to deliver and counts: it can never do better.
    """
    mask = np.zeros(num_clients, dtype=np.bool_)
    mask[row.selected] = [outcome != Outcome.DIVERGED for outcome in row.outcome]
    return mask


class _Learner:
    """The global model on its way, and what the next round needs of the last ones."""

    def __init__(self, federated: Federated, trainer: Trainer, folder: RunFolder) -> None:
        self._scenario = federated.scenario
        self._settings = federated.scenario.learning
        self._samples = [int(count) for count in federated.partition.samples]
        self._trainer = trainer
        self._folder = folder
        self._aggregator = get_aggregator(self._settings.aggregation)
        self._measured: tuple[int, Vector, NDArray[np.float64]] | None = None  # after round, model, full gradient
        self._evaluated: tuple[str, Evaluation] | None = None  # digest of a model, what it is worth
        facts = {"scenario_digest": scenario_digest(federated.scenario), "data_digest": federated.data.digest}
        if folder.header is None:
            self._weights = trainer.initial_weights()
            self._start(facts)
        else:
            _validate_header(folder, facts)
            self._weights = folder.read_model(len(folder.rounds), trainer.layout)
            self._measure_again()

    def _start(self, facts: dict[str, str]) -> None:
        found = self._trainer.evaluate(self._weights)
        header = JournalHeader(
            format=FORMAT,
            version=__version__,
            torch=version("torch"),
            scenario_digest=facts["scenario_digest"],
            data_digest=facts["data_digest"],
            num_parameters=self._trainer.layout.num_parameters,
            initial_model=digest(encode_weights(self._weights, self._trainer.layout)),
            initial_accuracy=_or_none(found.accuracy),
            initial_loss=_or_none(found.loss),
        )
        self._folder.write_header(header, self._weights, self._trainer.layout)

    def learn(self, planned: PlannedRound) -> LearningRound:
        """Trains and aggregates one round and makes it count."""
        round, clients = planned.state.round, planned.clients
        measured, smoothness = self._measure(round)
        results = self._trainer.train(self._weights, round, clients) if clients else []
        weights = self._combine(results)
        model = encode_weights(weights, self._trainer.layout)
        name = digest(model)
        found = self._evaluate(weights, name) if self._is_evaluated(round) else None
        row = LearningRound(
            round=round,
            selected=clients,
            outcome=[result.outcome.value for result in results],
            local_loss=[_or_none(result.loss) for result in results],
            local_gradient_norm=[_or_none(result.gradient_norm) for result in results],
            update_norm=float(np.sqrt(np.sum(np.square(weights.astype(np.float64) - self._weights)))),
            accuracy=None if found is None else _or_none(found.accuracy),
            loss=None if found is None else _or_none(found.loss),
            recall=None if found is None else [_or_none(share) for share in found.recall.tolist()],
            gradient_norm=None if measured is None else _or_none(_norm(measured.gradient)),
            global_loss=None if measured is None else _or_none(measured.loss),
            smoothness=smoothness,
            model=name,
        )
        self._folder.append(row, model, keep=[] if self._measured is None else [self._measured[0]])
        self._weights = weights
        return row

    def _combine(self, results: Sequence[LocalResult]) -> Vector:
        """The next global model, aggregated; the last one where too few updates arrived."""
        updates = [
            Update(result.client, result.weights, self._samples[result.client])
            for result in results
            if result.weights is not None
        ]
        if len(updates) < min_updates(self._settings.aggregation):
            return self._weights
        return aggregate(self._aggregator, updates)

    def _is_evaluated(self, round: int) -> bool:
        return round % self._settings.evaluate_every == 0 or round == self._scenario.rounds

    def _evaluate(self, weights: Vector, name: str) -> Evaluation:
        if self._evaluated is None or self._evaluated[0] != name:
            self._evaluated = name, self._trainer.evaluate(weights)
        return self._evaluated[1]

    def _measure(self, round: int) -> tuple[FullGradient | None, float | None]:
        """The full gradient at the model before this round where it is due, and how it changed since the last one."""
        every = self._settings.gradient_every
        if every == 0 or (round - 1) % every != 0:
            return None, None
        found = self._trainer.full_gradient(self._weights)
        last, self._measured = self._measured, (round - 1, self._weights, found.gradient)
        if last is None:
            return found, None
        distance = float(_norm(self._weights.astype(np.float64) - last[1]))
        if not distance > 0:
            return found, None
        return found, _or_none(_norm(found.gradient - last[2]) / distance)

    def _measure_again(self) -> None:
        """The last measurement before the run was left: computed again, which gives the same bits."""
        every, done = self._settings.gradient_every, len(self._folder.rounds)
        if every == 0 or done in (0, self._scenario.rounds):
            return
        after_round = (done - 1) // every * every
        weights = self._folder.read_model(after_round, self._trainer.layout)
        self._measured = after_round, weights, self._trainer.full_gradient(weights).gradient


def _validate_header(folder: RunFolder, facts: dict[str, str]) -> None:
    header = folder.header
    found = facts | {"version": __version__, "torch": version("torch")}
    for name, value in found.items():
        kept = getattr(header, name)
        if kept != value:
            shown = [text if len(text) <= 20 else text[:12] for text in (kept, value)]
            raise BadRunFolder(
                f"{folder.path}: begun with {name.replace('_', ' ')} {shown[0]}, now it is {shown[1]}:"
                " going on would not end in the same bytes"
            )


def _norm(values: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.sum(np.square(values))))


def _or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
