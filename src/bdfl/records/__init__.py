"""Records of a run as typed columns; every table, figure and page is made from them."""

from bdfl.records.aggregate_run import CrowdBook, CrowdRecord, encode_crowd, summarise_crowd
from bdfl.records.learning import LearningRecord, LearningRound, collect_learning
from bdfl.records.run import (
    NOBODY,
    InvalidRecord,
    PerRound,
    PerRoundClient,
    RoundRecord,
    RunDocument,
    RunRecord,
    RunSummary,
    collect_run,
    encode_run,
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
    "RunDocument",
    "RunRecord",
    "RunSummary",
    "collect_learning",
    "collect_run",
    "encode_crowd",
    "encode_run",
    "summarise_crowd",
    "summarise_run",
]
