"""Records of a run as typed columns; every table, figure and page is made from them."""

from bdfl.records.learning import LearningRecord, LearningRound, collect_learning
from bdfl.records.run import (
    NOBODY,
    CrowdBook,
    CrowdRecord,
    InvalidRecord,
    PerRound,
    PerRoundClient,
    RoundRecord,
    RunRecord,
    RunSummary,
    collect_run,
    encode_crowd,
    encode_run,
    summarise_crowd,
    summarise_run,
)

__all__ = [
    "NOBODY",
    "CrowdBook",
    "CrowdRecord",
    "InvalidRecord",
    "LearningRecord",
    "LearningRound",
    "PerRound",
    "PerRoundClient",
    "RoundRecord",
    "RunRecord",
    "RunSummary",
    "collect_learning",
    "collect_run",
    "encode_crowd",
    "encode_run",
    "summarise_crowd",
    "summarise_run",
]
