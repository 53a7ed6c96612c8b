"""Worker process of the explorer: answers requests with documents of the pages."""

import threading
import time
from collections import deque
from functools import cache, singledispatch
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np

from bdfl.audit.influence import leave_out
from bdfl.audit.lineage import (
    NotOnChain,
    get_block,
    layout_of,
    model_digest,
    read_model,
    trace_model,
)
from bdfl.environment import draw_federation
from bdfl.environment.draws import MiningRaces
from bdfl.environment.geometry import attach_clients, link_nodes, move_clients
from bdfl.errors import BdflError, one_line
from bdfl.experiment.comparison import compare
from bdfl.experiment.simulation import draw_run, round_problems
from bdfl.experiment.statistics import mean_interval
from bdfl.explorer import BadRequest, NotHere
from bdfl.explorer.documents import (
    Ancestor,
    FrontierDocument,
    LeftOut,
    ModelComparison,
    ModelDocument,
    RunFrontierPoint,
    TensorDistance,
    VerifyDocument,
    VerifyFailure,
)
from bdfl.explorer.what_if import solve_again
from bdfl.explorer.worker_client import (
    ENCODER,
    MAX_DRAWN,
    AnyRequest,
    DrawProblem,
    FindFrontier,
    FindIntervals,
    FindMining,
    FindPositions,
    Positions,
    RecordFacts,
    Reply,
    SplitRecord,
    TraceModel,
    VerifyChain,
    decode_array,
)
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.ledger.store import Store
from bdfl.ledger.verify import BlockVerdict, Verification, verify_chain
from bdfl.processes import serve_requests
from bdfl.records.files import known_height
from bdfl.scenario import Scenario
from bdfl.scenario.files import load_foreign_scenario
from bdfl.scheduling.problem import RoundProblem

_MAX_PARENTS = 200
_MAX_DISTANCES = 20  # models that are read to compute distances
_MAX_DISTANCE_BYTES = 2**23  # of a model; reading larger ones takes too long
_MAX_LINKS = 5000
_SWEPT_ROUNDS = 100
SWEPT_SEEDS = 3
_SWEPT_TRADEOFFS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
_MAX_WALK = 200_000  # rounds

_REQUESTS: msgspec.msgpack.Decoder[AnyRequest] = msgspec.msgpack.Decoder(AnyRequest, dec_hook=decode_array)


@singledispatch
def answer(request: object) -> object:
    """Return the answer to a request; raise `NotOnChain` if something is missing, another `BdflError` if it fails."""
    raise TypeError(type(request))


# Scenarios, drawn again


@answer.register
def _find_positions(request: FindPositions) -> Positions:
    scenario = load_foreign_scenario(Path(request.scenario))
    if not 1 <= request.round <= _MAX_WALK:
        raise NotOnChain(f"round {request.round}: 1 to {_MAX_WALK} expected")
    federation = draw_federation(scenario)
    walk = move_clients(scenario.geometry, federation.start_m, scenario.seed, request.round)
    [position_m] = deque(walk, maxlen=1)
    attachment = attach_clients(
        scenario.radio,
        position_m,
        federation.access_point_m,
        federation.shadowing,
        scenario.geometry.access_range_m,
    )
    links = link_nodes(scenario.geometry, position_m, attachment)
    return Positions(
        position_m=[(float(x_m), float(y_m)) for x_m, y_m in position_m],
        access_point_m=[(float(x_m), float(y_m)) for x_m, y_m in federation.access_point_m],
        access_point=attachment.access_point.tolist(),
        links=[(int(a), int(b)) for a, b in links[:_MAX_LINKS]],
    )


@answer.register
def _draw_problem(request: DrawProblem) -> RoundProblem:
    if not 1 <= request.round <= MAX_DRAWN:
        raise NotOnChain(f"round {request.round}: only the first {MAX_DRAWN} of a record can be drawn again")
    scenario = load_foreign_scenario(Path(request.scenario))
    scenario = msgspec.structs.replace(scenario, rounds=request.round)
    return round_problems(scenario, draw_run(scenario))[-1]


@answer.register
def _find_mining(request: FindMining) -> float:
    scenario = load_foreign_scenario(Path(request.scenario))
    races = MiningRaces(scenario, request.round, np.array(request.mining_hz), 0.0)
    return races.finding_s(request.attempt)[request.proposer]


@answer.register
def _find_intervals(request: FindIntervals) -> list[tuple[float, float]]:
    intervals = map(mean_interval, request.differences)
    return [(one.mean, one.half_width) for one in intervals]


answer.register(solve_again)


@answer.register
def _split_record(request: SplitRecord) -> RecordFacts:
    from bdfl.explorer.record_columns import split_record  # here: pyarrow is large and needed only for records

    return split_record(Path(request.folder), Path(request.into))


# Models


@answer.register
def _trace(request: TraceModel) -> ModelDocument:
    with ChainStore.open(Path(request.chain), read_only=True) as chain:
        trace = trace_model(chain, request.height)
        is_stored, pruned_to = chain.has_blob(bytes.fromhex(trace.model)), chain.checkpoint
        return ModelDocument(
            height=request.height,
            made_in=trace.made_in,
            model=trace.model,
            rule=trace.rule,
            is_stored=is_stored,
            pruned_to=pruned_to,
            is_trusted=trace.made_in in chain.trusted,
            contributions=list(trace.contributions),
            parents=_find_parents(chain, trace.made_in),
            compare=None if request.other is None else _compare(chain, request.height, request.other),
            without=None if request.without is None else _leave_out(chain, request.height, request.without),
            why=None if is_stored else f"the model's bytes are not kept: those up to block {pruned_to} were pruned",
        )


def _find_parents(chain: Store, made_in: int) -> list[Ancestor]:
    """Return the chain of models that led to a model, itself first."""
    makers = (height for height in range(made_in, 0, -1) if not get_block(chain, height).body.is_empty)
    heights = [*islice(makers, _MAX_PARENTS), 0][:_MAX_PARENTS]
    is_small = chain.genesis.model.size <= _MAX_DISTANCE_BYTES
    parents = []
    for place, height in enumerate(heights):
        digest = model_digest(chain, height)
        clients = [] if height == 0 else [update.client for update in get_block(chain, height).body.aggregated]
        before = heights[place + 1] if place + 1 < len(heights) else None
        distance = None
        if before is not None and is_small and place < _MAX_DISTANCES:
            distance = _distance(chain, height, before)
        parents.append(
            Ancestor(
                height=height, digest=digest.hex(), clients=clients, is_stored=chain.has_blob(digest), distance=distance
            )
        )
    return parents


def _distance(chain: Store, height: int, other: int) -> float | None:
    try:
        first, second = read_model(chain, height), read_model(chain, other)
    except BdflError:
        return None
    return float(np.linalg.norm(first.astype(np.float64) - second))


def _compare(chain: Store, height: int, other: int) -> ModelComparison:
    digest = model_digest(chain, other).hex()
    try:
        first, second = (read_model(chain, one).astype(np.float64) for one in (height, other))
    except BdflError as error:
        return ModelComparison(other=other, digest=digest, why=one_line(error))
    layout = layout_of(chain.genesis)
    sizes = [int(np.prod(shape, dtype=np.int64)) for shape in layout.shapes]
    tensors = [
        TensorDistance(
            name=name,
            shape=list(shape),
            norm=float(np.linalg.norm(mine)),
            other_norm=float(np.linalg.norm(theirs)),
            distance=float(np.linalg.norm(mine - theirs)),
        )
        for name, shape, mine, theirs in zip(
            layout.names,
            layout.shapes,
            np.split(first, np.cumsum(sizes)[:-1]),
            np.split(second, np.cumsum(sizes)[:-1]),
            strict=True,
        )
    ]
    distance, norm = float(np.linalg.norm(first - second)), float(np.linalg.norm(first))
    return ModelComparison(
        other=other, digest=digest, distance=distance, relative=distance / norm if norm > 0 else 0.0, tensors=tensors
    )


def _leave_out(chain: Store, height: int, client: int) -> LeftOut:
    try:
        found = leave_out(chain, client, block=height)
    except BdflError as error:
        return LeftOut(client=client, why=one_line(error))
    return LeftOut(
        client=client,
        distance=found.distance,
        relative=found.relative_distance,
        changed_in=list(found.changed_in),
    )


# Long computations, in background threads


class _ChainVerification:
    """Verification of a chain in a background thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.begin()

    def begin(self) -> None:
        """Verify the chain as it is now."""
        self._begun_s = time.monotonic()
        self._ended_s: float | None = None
        self._height = 0
        self._verdict: Verification | None = None
        self._why: str | None = None
        threading.Thread(target=self._run, daemon=True, name="verify").start()

    @property
    def is_stale(self) -> bool:
        """True if the chain has grown since it was verified."""
        verdict = self._verdict
        if verdict is None or verdict.failure is not None:
            return False
        with ChainStore.open(self.path, read_only=True) as chain:
            return chain.height > verdict.height

    def _run(self) -> None:
        try:
            with ChainStore.open(self.path, read_only=True) as chain:
                self._verdict = verify_chain(chain, known=known_height(chain, self.path), on_block=self._note)
        except BdflError as error:
            self._why = one_line(error)
        finally:
            self._ended_s = time.monotonic()

    def _note(self, verdict: BlockVerdict) -> None:
        self._height = verdict.height

    def document(self) -> VerifyDocument:
        verdict, ended_s = self._verdict, self._ended_s
        failure = None if verdict is None else verdict.failure
        seconds = (time.monotonic() if ended_s is None else ended_s) - self._begun_s
        if ended_s is not None and verdict is None:
            return VerifyDocument(state="failed", seconds=seconds, why=self._why)
        return VerifyDocument(
            state="computing" if ended_s is None else "done",
            is_valid=None if verdict is None else verdict.is_valid,
            height=self._height,
            num_signatures=0 if verdict is None else verdict.num_signatures,
            failure=None
            if failure is None
            else VerifyFailure(
                height=failure.block,
                rule=failure.rule,
                what=failure.message.replace(str(self.path), self.path.name),
                expected=failure.expected,
                found=failure.found.replace(str(self.path), self.path.name),
            ),
            seconds=seconds,
        )


class _FrontierSearch:
    """Simulation of a scenario at several V in a background thread."""

    def __init__(self, path: Path) -> None:
        scenario = load_foreign_scenario(path)
        self._scenario = msgspec.structs.replace(scenario, rounds=min(scenario.rounds, _SWEPT_ROUNDS))
        self.document = FrontierDocument(state="computing", rounds=self._scenario.rounds)
        threading.Thread(target=self._run, daemon=True, name="sweep").start()

    def _run(self) -> None:
        try:
            points = _sweep(self._scenario)
        except BdflError as error:
            self.document = msgspec.structs.replace(self.document, state="failed", why=one_line(error))
        else:
            self.document = msgspec.structs.replace(self.document, state="done", points=points)


def _sweep(scenario: Scenario) -> list[RunFrontierPoint]:
    found = compare(
        scenario,
        ("drc", "exact"),
        num_seeds=SWEPT_SEEDS,
        frontier_tradeoffs=_SWEPT_TRADEOFFS,
        with_bound=False,
        workers=1,
    )
    return [
        RunFrontierPoint(
            scheduler=one.scheduler,
            tradeoff=one.tradeoff,
            delay_s=one.delay_s.mean,
            delay_half_width_s=one.delay_s.half_width,
            shortfall=one.shortfall.mean,
            shortfall_half_width=one.shortfall.half_width,
        )
        for one in found.frontier
    ]


_verification_of, _search_of = cache(_ChainVerification), cache(_FrontierSearch)  # begun once for every path


@answer.register
def _verify(request: VerifyChain) -> VerifyDocument:
    found = _verification_of(Path(request.chain))
    if found.is_stale:
        found.begin()
    return found.document()


@answer.register
def _find_frontier(request: FindFrontier) -> FrontierDocument:
    return _search_of(Path(request.scenario)).document


def _reply(request: AnyRequest) -> Reply:
    try:
        return Reply(answer=msgspec.Raw(ENCODER.encode(answer(request))))
    except (NotOnChain, NotHere) as error:
        return Reply(error="NotHere", reason=one_line(error))
    except BadRequest as error:
        return Reply(error="BadRequest", reason=one_line(error))
    except BdflError as error:
        return Reply(error="Busy", reason=one_line(error))
    except Exception as error:
        return Reply(error="Busy", reason=f"it could not be worked out: {type(error).__name__}")


if __name__ == "__main__":
    serve_requests(_REQUESTS, _reply)
