"""Learning runs that leave only their records."""

from pathlib import Path
from tempfile import TemporaryDirectory

from bdfl.experiment.run_folder import create_run_folder
from bdfl.experiment.training_run import Federated, train_run
from bdfl.learning.training import Trainer
from bdfl.records import LearningRecord, RunRecord


def train_in_passing(federated: Federated, trainer: Trainer) -> tuple[RunRecord, LearningRecord]:
    """Run the whole training in a temporary folder and return its records."""
    with (
        TemporaryDirectory(prefix="bdfl-run-") as folder,
        create_run_folder(Path(folder), federated.scenario) as run,
    ):
        return train_run(federated, trainer, run)
