"""A network of real processes: how long things last in it, and how long a node waits."""

from enum import StrEnum
from typing import Annotated

from bdfl.scenario.section import Section
from bdfl.scenario.values import NotNegative, Positive, about


class LiveMode(StrEnum):
    """Where a live node's conditions and durations come from."""

    EMULATE = "emulate"  # the scenario's cost model, stretched: training, uploading and mining last as long as it says
    MEASURED = "measured"  # the machine it runs on


class Live(Section, frozen=True, kw_only=True):
    """Real nodes. The five waits are derived from the scenario where they are not given."""

    mode: Annotated[LiveMode, about("", "ours", "emulate the scenario's radio and processors, or measure")] = (
        LiveMode.EMULATE
    )
    time_scale: Annotated[
        NotNegative, about("", "ours", "real seconds for a modelled one; 0: nothing lasts longer than it must")
    ] = 20.0
    block_s: Annotated[Positive, about("s", "ours", "time that mining should take where it is measured")] = 2.0
    grace_s: Annotated[Positive | None, about("s", "ours", "wait for updates and reports beyond what is planned")] = (
        None
    )
    attempt_s: Annotated[Positive | None, about("s", "ours", "first attempt to agree lasts 1.5 times this")] = None
    resend_s: Annotated[Positive | None, about("s", "ours", "between two times that a node says all it holds")] = None
    fetch_s: Annotated[Positive | None, about("s", "ours", "least wait for a piece before another is asked")] = None
    lease_s: Annotated[Positive | None, about("s", "ours", "silence after which a peer counts as gone")] = None
