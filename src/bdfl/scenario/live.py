"""Settings of a live network: durations and timeouts."""

from enum import StrEnum
from typing import Annotated

from bdfl.scenario.section import Section
from bdfl.scenario.values import NotNegative, Positive, about


class LiveMode(StrEnum):
    """Source of a live node's conditions and durations."""

    EMULATE = "emulate"  # the scenario's cost model, scaled: training, upload and mining take the modelled time
    MEASURED = "measured"  # the machine it runs on


class Live(Section, frozen=True, kw_only=True):
    """Settings of live nodes. The five timeouts are derived from the scenario unless given."""

    mode: Annotated[LiveMode, about("", "ours", "emulate the scenario's radio and processors, or measure")] = (
        LiveMode.EMULATE
    )
    time_scale: Annotated[
        NotNegative, about("", "ours", "real seconds per modelled second; 0: no artificial delays")
    ] = 20.0
    block_s: Annotated[Positive, about("s", "ours", "target mining time in mode measured")] = 2.0
    grace_s: Annotated[Positive | None, about("s", "ours", "wait for updates and reports beyond the planned time")] = (
        None
    )
    attempt_s: Annotated[Positive | None, about("s", "ours", "first consensus attempt lasts 1.5 times this")] = None
    resend_s: Annotated[Positive | None, about("s", "ours", "interval at which a node resends its messages")] = None
    fetch_s: Annotated[Positive | None, about("s", "ours", "least wait for a piece before the next peer")] = None
    lease_s: Annotated[Positive | None, about("s", "ours", "silence after which a peer counts as disconnected")] = None
