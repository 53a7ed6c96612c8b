"""bdfl on the same task: whole rounds of `bdfl run`, with everything that a chain takes.

`own` trains with bdfl's learner, `client` runs the Flower client as it is.
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import torch
from numpy.typing import NDArray

from bdfl import __version__
from bdfl.experiment.run_folder import create_run_folder
from bdfl.experiment.training_run import prepare_run, train_run
from bdfl.learning.trainer_pool import open_trainer
from bdfl.learning.weights import decode_weights
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.records import LearningRound, RoundRecord
from bdfl.scenario import Scenario, load_scenario
from benchmarks.flower.task import FILE_VARIABLE, judge, load_task
from benchmarks.learning.gate import Gate, read_arguments

SCENARIO_FILE = "scenario.toml"
CLIENT, MODEL = "benchmarks.flower.client:app", "benchmarks.flower.client:first_model"


class Enough(Exception):
    """The benchmark wants no further round."""


def play(gate: Gate, scenario: Scenario, workers: int, folder: Path) -> tuple[Sequence[NDArray[Any]], str]:
    """Rounds for as long as the gate opens; the last model's arrays, and its digest as the chain has it."""
    federated = prepare_run(scenario)
    models: list[str] = []

    def settle(record: RoundRecord, row: LearningRound) -> None:
        models.append(row.model)
        if not gate.opens():
            raise Enough

    with (
        open_trainer(scenario, federated.data, federated.partition, workers=workers) as trainer,
        create_run_folder(folder, scenario) as run,
    ):
        gate.opens()  # the first round also founds the chain
        with suppress(Enough):
            train_run(federated, trainer, run, on_settled=settle)
        with ChainStore.open(run.chain_path, read_only=True) as chain:
            model = chain.get_blob(bytes.fromhex(models[-1]))
        assert model is not None, "the chain has its last model"
        layout = trainer.layout
    return [array for _, array in layout.split(decode_weights(model, layout))], models[-1]


def main() -> None:
    """Serves the benchmark until it says that it is enough."""
    path, kind, workers, threads = read_arguments()
    os.environ[FILE_VARIABLE] = str(path)
    gate = Gate()
    scenario = load_scenario(path.with_name(SCENARIO_FILE))
    learning = msgspec.structs.replace(scenario.learning, threads=threads)
    if kind == "client":
        learning = msgspec.structs.replace(learning, flower=CLIENT, flower_model=MODEL)
    with tempfile.TemporaryDirectory(prefix="run-", dir=path.parent) as folder:
        scenario = msgspec.structs.replace(scenario, learning=learning)
        arrays, digest = play(gate, scenario, workers, Path(folder) / "run")
    versions = f"Python {sys.version.split()[0]}, bdfl {__version__}, torch {torch.__version__}"
    gate.close(*judge(load_task(), arrays), versions, digest)


if __name__ == "__main__":
    main()
