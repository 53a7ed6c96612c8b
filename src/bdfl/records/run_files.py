"""File names in the folder of a run, and the header of its journal."""

import msgspec

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
