"""Records of a run as typed columns; every table, figure and page is made from them."""

from bdfl.records.aggregate_run import (
    AggregateCollector,
    AggregateRecord,
    encode_aggregate,
    summarise_aggregate,
)
from bdfl.records.learning import LearningRecord, LearningRound, collect_learning
from bdfl.records.run import (
    NOBODY,
    InvalidRecord,
    PerRound,
    PerRoundClient,
    RoundRecord,
    RunRecord,
    RunSummary,
    collect_run,
    encode_run,
    summarise_run,
)

__all__ = [
    "NOBODY",
    "AggregateCollector",
    "AggregateRecord",
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
    "encode_aggregate",
    "encode_run",
    "summarise_aggregate",
    "summarise_run",
]
