"""A training run: prepare data and trainer, play the rounds, evaluate, settle the records."""

import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from weakref import finalize

from bdfl import __version__
from bdfl.aggregation import get_aggregator
from bdfl.environment import draw_federation, draw_rounds
from bdfl.errors import require
from bdfl.experiment.learner import Learner
from bdfl.experiment.network_run import NetworkRun, open_archive, own_functions, run_genesis, run_toolbox
from bdfl.experiment.run_folder import (
    BadRunFolder,
    RunFolder,
    create_run_folder,
    open_run_folder,
    refuse_existing,
    verify_chain,
)
from bdfl.experiment.simulation import Draws, PlannedRound, collect_rounds
from bdfl.learning.attacks import poison_labels
from bdfl.learning.data import DataSet, load_data
from bdfl.learning.flower_trainer import FlowerClients, OnRehearsed, rehearse_clients, suggest_workers
from bdfl.learning.participation import participation_of
from bdfl.learning.partition import Partition, draw_partition
from bdfl.learning.training import Trainer
from bdfl.learning.weights import Vector, decode_weights, encode_weights
from bdfl.ledger.block import Block, Genesis
from bdfl.ledger.chain import ChainState
from bdfl.ledger.chain_params import blob_limit, weights_file
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.ledger.verify import Verification
from bdfl.processes import count_cores
from bdfl.records import LearningRecord, LearningRound, RoundRecord, RunRecord, collect_learning
from bdfl.records.learning import FORMAT, JournalHeader, or_nan, or_none
from bdfl.scenario import Engine, Scenario, scenario_digest
from bdfl.scenario.schema_learning import MLP
from bdfl.scheduling.registry import get_scheduler

# A learning run: schedule, train, commit a block and record, round by round, in a folder from which it can resume.

Planned = Callable[[PlannedRound], None]
Settled = Callable[[RoundRecord, LearningRound], None]


@dataclass(frozen=True, eq=False)
class Federated:
    """A scenario with real data or Flower clients, its partition and its draws."""

    scenario: Scenario
    data: DataSet | FlowerClients
    partition: Partition
    draws: Draws


def prepare_run(scenario: Scenario, on_rehearsed: OnRehearsed | None = None) -> Federated:
    """Load and partition the scenario's data; sizes and participation rates are those of the real data sets.

    Flower clients have their own data. Their sizes are measured by one training each, reported to `on_rehearsed`. Their
    labels stay unknown, so all have the same rate unless the scenario gives rates.
    """
    get_scheduler(scenario.scheduler.name, scenario.scheduler.parameters)  # raises before any work
    get_aggregator(scenario.learning.aggregation)
    data: DataSet | FlowerClients
    if scenario.learning.flower is not None:
        data = rehearse_clients(scenario, on_rehearsed)
        partition = data.partition
    else:
        data = load_data(scenario.data)
        partition = draw_partition(scenario, data.train_labels, data.num_labels)
        data = poison_labels(scenario, data, partition)
    federation = draw_federation(scenario, partition.samples)
    rates = participation_of(scenario, partition.label_counts)
    draws = Draws(federation, rates, list(draw_rounds(scenario, federation)))
    return Federated(scenario, data, partition, draws)


def default_workers(scenario: Scenario, data: DataSet | FlowerClients | None = None) -> int:
    """Number of training processes for a fast run: one per core, or one if starting more would cost more."""
    settings = scenario.learning
    is_flower = isinstance(data, FlowerClients)
    if not is_flower and (settings.engine is Engine.VMAP or settings.model == MLP):
        return 1
    num_cores = count_cores()
    if isinstance(data, FlowerClients):
        return suggest_workers(data, scenario, num_cores)
    return max(1, min(num_cores // settings.threads, scenario.clients.count))


def train_run(
    federated: Federated,
    trainer: Trainer,
    folder: RunFolder,
    founded: tuple[Genesis, bytes] | None = None,
    *,
    on_planned: Planned | None = None,
    on_settled: Settled | None = None,
) -> tuple[RunRecord, LearningRecord]:
    """Run all rounds by the members of a simulated network; rounds already in `folder` are not trained again.

    `founded` is the result of `found_chain`, if known already. `on_planned` is called before a round is trained,
    `on_settled` after every round, including those already there.
    """
    scenario = federated.scenario
    if folder.header is not None:
        _validate_header(folder, _facts(federated))
    if folder.is_finished:
        return _replay(federated, folder, on_settled)
    genesis, initial = found_chain(federated, trainer) if founded is None else founded
    with open_archive(folder.chain_path, genesis, initial) as archive:
        if folder.header is None:
            folder.write_header(_make_header(federated, trainer, initial))
        if len(folder.rounds) > archive.height:
            folder.drop_rounds(archive.height)
        network = _follow_journal(federated, folder, archive, on_settled)
        if len(folder.rounds) < scenario.rounds:
            learner = _recall_learner(trainer, archive, folder)

            def plan() -> None:
                if on_planned is not None and len(folder.rounds) < scenario.rounds:
                    on_planned(network.plan_next())

            def settle(chain: ChainState, block: Block, model: bytes) -> None:
                row = learner.learn(chain, block, model)
                folder.append(row, model)
                if on_settled is not None:
                    on_settled(network.records[-1], row)
                plan()

            plan()
            network.play(learner.train, settle)
        folder.finish(_read_model(archive, scenario.rounds))
        archive.compact()
    return _collect(federated, folder, network)


def found_chain(federated: Federated, trainer: Trainer) -> tuple[Genesis, bytes]:
    """Return the genesis of the run's chain, and the untrained model; raise if a value does not fit on a chain."""
    initial = encode_weights(trainer.initial_weights(), trainer.layout)
    return run_genesis(federated.scenario, federated.draws, trainer.layout, initial), initial


def replay_run(federated: Federated, folder: RunFolder) -> tuple[RunRecord, LearningRecord] | None:
    """Return the records of the rounds in a folder, without training; None if it has no round yet.

    Raises `BadRunFolder` if its scenario, data or chain have changed.
    """
    if folder.header is not None and folder.header.scenario_digest != scenario_digest(federated.scenario):
        raise BadRunFolder(f"{folder.path}: begun with another scenario than is in it now")
    if folder.header is not None and folder.header.data_digest != federated.data.digest:
        raise BadRunFolder(f"{folder.path}: trained on other data than {federated.data.name} now holds")
    return _replay(federated, folder, None) if folder.rounds else None


def verify_run(folder: RunFolder) -> Verification:
    """Verify the chain of a run from its genesis on."""
    return verify_chain(folder.chain_path, own_functions(folder.scenario))


def _replay(federated: Federated, folder: RunFolder, on_settled: Settled | None) -> tuple[RunRecord, LearningRecord]:
    with ChainStore.open(folder.chain_path, read_only=True) as archive:
        if archive.height < len(folder.rounds):
            found = f"{archive.height} blocks found, {len(folder.rounds)} expected, as the journal says"
            raise BadRunFolder(f"{folder.path}: the chain was cut short: {found}")
        return _collect(federated, folder, _follow_journal(federated, folder, archive, on_settled))


def _follow_journal(
    federated: Federated, folder: RunFolder, archive: ChainStore, on_settled: Settled | None
) -> NetworkRun:
    """Return the run after the rounds of the journal, each compared with its block."""
    cache = run_toolbox(federated.scenario, blob_limit(archive.genesis))
    network = NetworkRun(federated.scenario, federated.draws, archive, cache)
    for row, block in zip(folder.rounds, archive.blocks(), strict=False):
        if row.model != block.body.model.hex() or row.selected != list(block.body.schedule.selected):
            raise BadRunFolder(f"{folder.path}: round {row.round} of the journal is not that of block {row.round}")
        record = network.advance(block)
        if on_settled is not None:
            on_settled(record, row)
    return network


def _collect(federated: Federated, folder: RunFolder, network: NetworkRun) -> tuple[RunRecord, LearningRecord]:
    header = folder.header
    if header is None:
        raise BadRunFolder(f"{folder.path}: no round was begun")
    learning = collect_learning(
        folder.rounds,
        label_names=federated.data.label_names,
        label_counts=federated.partition.label_counts,
        num_parameters=header.num_parameters,
        initial_accuracy=or_nan(header.initial_accuracy),
        initial_loss=or_nan(header.initial_loss),
    )
    return collect_rounds(federated.scenario, federated.draws, network.records), learning


def _recall_learner(trainer: Trainer, archive: ChainStore, folder: RunFolder) -> Learner:
    """Return a learner after the rounds of the folder, restored from the archive and the clients' personal layers."""
    scenario, num_rounds = folder.scenario, len(folder.rounds)

    def read(round: int) -> Vector:
        return decode_weights(_read_model(archive, round), trainer.layout)

    personal = folder.open_personal(trainer.personal_layout) if scenario.learning.personal else None
    learner = Learner(scenario, trainer, _model_name(archive, num_rounds), read(num_rounds), personal)
    every = scenario.learning.gradient_every
    if every and num_rounds:
        learner.measure_again(read((num_rounds - 1) // every * every))
    return learner


def _model_name(archive: ChainStore, round: int) -> bytes:
    return archive.block(round).body.model if round else archive.genesis.model.initial


def _read_model(archive: ChainStore, round: int) -> bytes:
    """Weights of the model after a round (0: untrained), as bytes."""
    data = archive.get_blob(_model_name(archive, round))
    if data is None:
        raise BadRunFolder(f"the chain has no model after round {round}, and going on needs it")
    return weights_file(archive.genesis, data)


def _facts(federated: Federated) -> dict[str, str]:
    return {"scenario_digest": scenario_digest(federated.scenario), "data_digest": federated.data.digest}


def _make_header(federated: Federated, trainer: Trainer, initial_model: bytes) -> JournalHeader:
    found = trainer.evaluate(decode_weights(initial_model, trainer.layout))
    facts = _facts(federated)
    return JournalHeader(
        format=FORMAT,
        version=__version__,
        torch=_torch_version(),
        scenario_digest=facts["scenario_digest"],
        data_digest=facts["data_digest"],
        num_parameters=trainer.layout.num_parameters,
        initial_model=hashlib.sha256(initial_model).hexdigest(),
        initial_accuracy=or_none(found.accuracy),
        initial_loss=or_none(found.loss),
    )


def _validate_header(folder: RunFolder, facts: dict[str, str]) -> None:
    header = folder.header
    found = facts | {"version": __version__, "torch": _torch_version()}
    for name, value in found.items():
        kept = getattr(header, name)
        if kept != value:
            shown = [text if len(text) <= 20 else text[:12] for text in (kept, value)]
            raise BadRunFolder(
                f"{folder.path}: begun with {name.replace('_', ' ')} {shown[0]}, now it is {shown[1]}:"
                " going on would not end in the same bytes"
            )


def _torch_version() -> str:
    """Version of PyTorch that computed the results; "none" if Flower clients run without it."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return "none"


# A whole run: prepare, train, verify, write.


@dataclass(frozen=True, eq=False)
class Run:
    """A run that was trained: its records, the verification of its chain, and the files in its folder."""

    federated: Federated
    folder: Path  # a temporary one is removed with this object
    record: RunRecord  # schedules, delays, energies and queues of every round
    learning: LearningRecord  # accuracies, losses and outcomes of training of every round
    header: JournalHeader
    verification: Verification | None = None  # None: not verified
    verified_s: float = 0.0  # duration of the verification
    files: list[Path] = field(default_factory=list)  # tables, figures and page

    @property
    def scenario(self) -> Scenario:
        return self.federated.scenario


@dataclass(frozen=True)
class RunOptions:
    """Processes that train, functions called as a run goes on, and the steps after training."""

    workers: int | None = None  # training processes; None: by engine and cores
    on_ray: bool = False  # on a Ray cluster, that at `address` or a local one
    address: str | None = None
    on_rehearsed: OnRehearsed | None = None  # Flower clients that told their number of samples so far, and all
    on_begun: Callable[[RunFolder], None] | None = None  # the folder is there, training begins
    on_planned: Planned | None = None  # before a round is trained
    on_settled: Settled | None = None  # after every round, including those of an interrupted run
    verify: bool = True
    write: Callable[[Run], list[Path]] | None = None  # writes files into the folder and returns them


_DEFAULT = RunOptions()


def run(scenario: Scenario, out: Path | None = None, options: RunOptions = _DEFAULT) -> Run:
    """Train a model on a simulated network with a chain: prepare, train, verify, write.

    Errors in data, model or genesis leave no folder behind. Without `out` the folder is temporary, see `Run`.
    """
    if out is not None:
        refuse_existing(out)
    federated = _prepare(scenario, options)
    with open_workers(federated, options) as trainer:
        return run_federated(federated, trainer, out, options)


def run_federated(
    federated: Federated, trainer: Trainer, out: Path | None = None, options: RunOptions = _DEFAULT
) -> Run:
    """Do the same as `run` with data and trainer that several runs may share."""
    founded = found_chain(federated, trainer)
    if out is not None:
        with create_run_folder(out, federated.scenario) as folder:
            return _finish(federated, trainer, folder, founded, options)
    path = Path(mkdtemp(prefix="bdfl-run-"))
    try:
        with create_run_folder(path, federated.scenario) as folder:
            made = _finish(federated, trainer, folder, founded, options)
    except BaseException:
        rmtree(path, ignore_errors=True)
        raise
    finalize(made, rmtree, path, ignore_errors=True)
    return made


def run_group(scenarios: Sequence[Scenario]) -> list[Run]:
    """Run scenarios that share their data and draws in this process, without verifying their chains."""
    federated, options = prepare_run(scenarios[0]), RunOptions(workers=1, verify=False)
    with open_workers(federated, options) as trainer:
        return [run_federated(replace(federated, scenario=scenario), trainer, None, options) for scenario in scenarios]


def resume(path: Path, allowed: frozenset[str] = frozenset(), options: RunOptions = _DEFAULT) -> Run:
    """Finish the run in a folder, in the same bytes as if never interrupted.

    The folder is untrusted: functions that its scenario names must be `allowed`.
    """
    with open_run_folder(path, allowed) as folder:
        federated = _prepare(folder.scenario, options)
        with open_workers(federated, options) as trainer:
            return _finish(federated, trainer, folder, None, options)


def load_run(path: Path, allowed: frozenset[str] = frozenset(), options: RunOptions = _DEFAULT) -> Run:
    """Return the run in a folder as far as it is, without training; raise `BadRunFolder` if no round is over."""
    with open_run_folder(path, allowed) as folder:
        federated = _prepare(folder.scenario, options)
        if options.on_begun is not None:
            options.on_begun(folder)
        records = replay_run(federated, folder)
        if records is None:
            raise BadRunFolder(f"{path}: no round is over yet, nothing to report")
        return _conclude(federated, folder, records, options)


def open_workers(federated: Federated, options: RunOptions = _DEFAULT) -> AbstractContextManager[Trainer]:
    """Open a trainer on the processes of the options, whose number does not change a result."""
    from bdfl.learning.trainer_pool import open_ray_trainer, open_trainer  # PyTorch only if training is needed

    scenario, data, partition = federated.scenario, federated.data, federated.partition
    if options.on_ray:
        return open_ray_trainer(scenario, data, partition, address=options.address, workers=options.workers)
    workers = default_workers(scenario, data) if options.workers is None else options.workers
    return open_trainer(scenario, data, partition, workers=workers)


def _prepare(scenario: Scenario, options: RunOptions) -> Federated:
    federated = prepare_run(scenario, options.on_rehearsed)
    if options.write is not None:
        require("the report of a run", "matplotlib", "pyarrow")  # before hours of training
    return federated


def _finish(
    federated: Federated,
    trainer: Trainer,
    folder: RunFolder,
    founded: tuple[Genesis, bytes] | None,
    options: RunOptions,
) -> Run:
    if options.on_begun is not None:
        options.on_begun(folder)
    records = train_run(
        federated, trainer, folder, founded, on_planned=options.on_planned, on_settled=options.on_settled
    )
    return _conclude(federated, folder, records, options)


def _conclude(
    federated: Federated, folder: RunFolder, records: tuple[RunRecord, LearningRecord], options: RunOptions
) -> Run:
    """Return the run with its verification and its files, as asked for."""
    assert folder.header is not None, "a run with records has a header"
    started_s = time.monotonic()
    verification = verify_run(folder) if options.verify else None
    made = Run(federated, folder.path, *records, folder.header, verification, time.monotonic() - started_s)
    return made if options.write is None else replace(made, files=options.write(made))
