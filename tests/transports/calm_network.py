"""A network in which nothing goes wrong but what a test adds."""

from bdfl.scenario.schema_learning import QuorumRule
from campaigns.faults.plan import SECOND_NS, FaultPlan

CALM = FaultPlan(
    seed=11,
    quorum=QuorumRule.BFT,
    num_nodes=4,
    scheduler="all",
    aggregation="mean",
    faulty=0,
    quiet_ns=8 * SECOND_NS,
    calm_ns=SECOND_NS // 200,
    attempt_ns=SECOND_NS,
    resend_ns=SECOND_NS // 2,
)
