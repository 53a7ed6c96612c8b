"""Records of a run as typed columns; every table, figure and page is made from them."""

from bdfl.records.aggregate_run import (
    AggregateCollector as AggregateCollector,
    AggregateRecord as AggregateRecord,
    encode_aggregate as encode_aggregate,
    summarise_aggregate as summarise_aggregate,
)
from bdfl.records.learning import (
    LearningRecord as LearningRecord,
    LearningRound as LearningRound,
    collect_learning as collect_learning,
)
from bdfl.records.run import (
    NOBODY as NOBODY,
    InvalidRecord as InvalidRecord,
    PerRound as PerRound,
    PerRoundClient as PerRoundClient,
    RoundRecord as RoundRecord,
    RunRecord as RunRecord,
    RunSummary as RunSummary,
    collect_run as collect_run,
    encode_run as encode_run,
    summarise_run as summarise_run,
)
