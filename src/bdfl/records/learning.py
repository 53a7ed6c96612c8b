"""Learning results of a run, round by round, as rows of its journal and as columns; the names of its files.

An unknown number (no evaluation in this round, no loss of a client without data) is `None` in a row and NaN in a
column.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from bdfl.records.run import PerRound, PerRoundClient
from bdfl.types import PerClient


class LearningRound(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One round of learning; lists of clients are in the order of `selected`."""

    round: int  # 1-based
    selected: list[int]  # numbers of the clients that trained, ascending
    outcome: list[str]  # of each: trained, no-samples or diverged
    local_loss: list[float | None]  # mean loss over the local steps
    local_gradient_norm: list[float | None]  # largest norm of a mini-batch gradient
    epsilon: list[float | None]  # spent so far, as the update in the block states; none: no update, or not private
    update_norm: float  # change of the global model, |W(t) - W(t-1)|
    accuracy: float | None  # of the model after the round, on the test set
    loss: float | None
    recall: list[float | None] | None  # per label
    gradient_norm: float | None  # of the global training loss F, at the model before the round
    global_loss: float | None  # F there
    smoothness: float | None  # |grad F(w') - grad F(w)| / |w' - w| since it was last measured
    model: str  # SHA-256 of the model after the round, as it is stored


@dataclass(frozen=True, eq=False, kw_only=True)
class LearningRecord:
    """Learning results of a run as columns, one row per round of the `RunRecord` beside it."""

    label_names: tuple[str, ...]
    samples: PerClient  # |D_i|
    label_counts: NDArray[np.int64]  # (clients, labels)
    num_parameters: int
    initial_accuracy: float  # of the untrained model
    initial_loss: float
    outcome: NDArray[np.str_]  # (rounds, clients); empty where a client was not selected
    local_loss: PerRoundClient
    local_gradient_norm: PerRoundClient
    epsilon: PerRoundClient  # spent so far; NaN where not selected, without an update or not private
    update_norm: PerRound
    accuracy: PerRound
    loss: PerRound
    recall: NDArray[np.float64]  # (rounds, labels)
    gradient_norm: PerRound
    global_loss: PerRound
    smoothness: PerRound

    @property
    def num_rounds(self) -> int:
        return len(self.accuracy)

    @property
    def is_private(self) -> bool:
        """True if any update states its epsilon."""
        return bool(np.isfinite(self.epsilon).any())

    @property
    def final_epsilon(self) -> PerClient:
        """The highest epsilon that each client stated, (clients,); NaN for a client that stated none."""
        spent = np.where(np.isfinite(self.epsilon), self.epsilon, -np.inf).max(axis=0, initial=-np.inf)
        final: PerClient = np.where(np.isfinite(spent), spent, np.nan)
        return final

    @property
    def best_round(self) -> int | None:
        """The round with the highest accuracy, the first of equals; none if no evaluation gave finite numbers."""
        return best_round(self.accuracy.tolist(), self.loss.tolist())

    @property
    def final_accuracy(self) -> float:
        """Accuracy of the last model evaluated; NaN if none was."""
        known = self.accuracy[np.isfinite(self.accuracy)]
        return float(known[-1]) if known.size else float("nan")

    def count_outcomes(self, outcome: str) -> int:
        """Count the local trainings with this outcome."""
        return int(np.count_nonzero(self.outcome == outcome))


LEARNED_PER_ROUND = ("accuracy", "loss", "update_norm", "gradient_norm", "global_loss", "smoothness")
LEARNED_PER_CLIENT = ("local_loss", "local_gradient_norm", "epsilon")


def best_round(accuracy: Sequence[float | None], loss: Sequence[float | None]) -> int | None:
    """Return the round (1-based) with the highest accuracy among those with finite loss, the first of equals."""
    best, highest = None, -np.inf
    for round, (found, lost) in enumerate(zip(accuracy, loss, strict=True), start=1):
        if found is not None and lost is not None and np.isfinite(lost) and found > highest:
            best, highest = round, found
    return best


def collect_learning(
    rounds: Sequence[LearningRound],
    *,
    label_names: tuple[str, ...],
    label_counts: NDArray[np.int64],
    num_parameters: int,
    initial_accuracy: float,
    initial_loss: float,
) -> LearningRecord:
    """Return the columns of these rounds, in order."""
    num_clients, num_labels = label_counts.shape
    longest = max((len(text) for row in rounds for text in row.outcome), default=1)
    outcome = np.zeros((len(rounds), num_clients), dtype=f"<U{longest}")
    per_client = {name: np.full((len(rounds), num_clients), np.nan) for name in LEARNED_PER_CLIENT}
    recall = np.full((len(rounds), num_labels), np.nan)
    for place, row in enumerate(rounds):
        outcome[place, row.selected] = row.outcome
        for name, values in per_client.items():
            values[place, row.selected] = _floats(getattr(row, name))
        if row.recall is not None:
            recall[place] = _floats(row.recall)
    return LearningRecord(
        label_names=label_names,
        samples=label_counts.sum(axis=1, dtype=np.float64),
        label_counts=label_counts,
        num_parameters=num_parameters,
        initial_accuracy=initial_accuracy,
        initial_loss=initial_loss,
        outcome=outcome,
        recall=recall,
        **per_client,
        **{name: _floats([getattr(row, name) for row in rounds]) for name in LEARNED_PER_ROUND},
    )


def _floats(values: Sequence[float | None]) -> NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


# File names in the folder of a run, and the header of its journal.

FORMAT = 3  # of the journal
SCENARIO_FILE = "scenario.toml"
JOURNAL_FILE = "journal.jsonl"  # a header, then a `LearningRound` for every round
FINAL_MODEL = "final.safetensors"
BEST_MODEL = "best.safetensors"
CHAIN_FOLDER = "chain"
LOCK_FILE = ".lock"


class JournalHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Inputs of the rounds in a journal; a run resumed with other inputs would not give the same bytes."""

    format: int
    version: str  # of bdfl
    torch: str
    scenario_digest: str
    data_digest: str
    num_parameters: int
    initial_model: str  # SHA-256
    initial_accuracy: float | None
    initial_loss: float | None


# Numbers that are not finite are null in a journal.


def or_none(value: float) -> float | None:
    """Return the value, or None if it is not finite."""
    return float(value) if np.isfinite(value) else None


def or_nan(value: float | None) -> float:
    """Return the value, or NaN for None."""
    return float("nan") if value is None else value
