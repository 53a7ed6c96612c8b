"""Worker process of the explorer: reads requests from standard input until it ends."""

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import singledispatch
from pathlib import Path
from typing import BinaryIO

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
from bdfl.experiment.simulation import draw_run, prove_bound, round_problems
from bdfl.experiment.solve import answer, decide
from bdfl.experiment.statistics import mean_interval
from bdfl.explorer.documents import VerifyFailure
from bdfl.explorer.worker_client import (
    LENGTH_SIZE,
    MAX_DRAWN,
    AnyOrder,
    Choice,
    Compared,
    Contributor,
    DecisionOrder,
    DrawProblem,
    Judged,
    LeftOut,
    Lineage,
    Mined,
    MinedIn,
    Pair,
    Paired,
    Parent,
    Places,
    Positions,
    ProblemOrder,
    ReadRecord,
    Refusal,
    Reply,
    Solve,
    Solved,
    Sweep,
    SweepPoint,
    Swept,
    Tensor,
    Traced,
    Verify,
)
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.ledger.store import Store
from bdfl.ledger.verify import BlockVerdict, Failure, Verification, verify_chain
from bdfl.records.files import known_height
from bdfl.scenario import Scenario
from bdfl.scenario.files import load_foreign_scenario
from bdfl.scheduling.checker import evaluate
from bdfl.scheduling.problem import Decision, RoundProblem, validate_problem
from bdfl.types import PerClient

_MAX_PARENTS = 200
_MAX_DISTANCES = 20  # models that are read to compute distances
_MAX_DISTANCE_BYTES = 2**23  # of a model; reading larger ones takes too long
_SWEPT_ROUNDS = 100
SWEPT_SEEDS = 3
_SWEPT_TRADEOFFS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
_MAX_WALK = 200_000  # rounds

_ORDER: msgspec.msgpack.Decoder[AnyOrder] = msgspec.msgpack.Decoder(AnyOrder)
_ENCODER = msgspec.msgpack.Encoder()


@singledispatch
def work_out(order: object) -> object:
    """Return the answer to a request; raise `NotOnChain` if something is missing, another `BdflError` if it fails."""
    raise TypeError(type(order))


# Positions


@work_out.register
def _find_places(order: Positions) -> Places:
    scenario = load_foreign_scenario(Path(order.scenario))
    if not 1 <= order.round <= _MAX_WALK:
        raise NotOnChain(f"round {order.round}: 1 to {_MAX_WALK} expected")
    federation = draw_federation(scenario)
    walk = move_clients(scenario.geometry, federation.start_m, scenario.seed, order.round)
    [position_m] = deque(walk, maxlen=1)
    attachment = attach_clients(
        scenario.radio,
        position_m,
        federation.access_point_m,
        federation.shadowing,
        scenario.geometry.access_range_m,
    )
    links = link_nodes(scenario.geometry, position_m, attachment)
    return Places(
        position_m=[(float(x_m), float(y_m)) for x_m, y_m in position_m],
        access_point_m=[(float(x_m), float(y_m)) for x_m, y_m in federation.access_point_m],
        access_point=attachment.access_point.tolist(),
        links=[(int(a), int(b)) for a, b in links[:5000]],
    )


# What-if analysis


@work_out.register
def _solve(order: Solve) -> Solved:
    problem = order.problem.to_problem()
    validate_problem(problem)
    recorded = None
    if order.recorded is not None:
        known = order.recorded_problem.to_problem()
        validate_problem(known)
        recorded = _choose("recorded", known, lambda: prove_bound(known, _read_decision(order.recorded)))
    choices = [_choose(name, problem, _decider(problem, name)) for name in order.schedulers]
    frontier = []
    for tradeoff in order.tradeoffs:
        moved = replace(problem, tradeoff=tradeoff)
        frontier += [_choose(name, moved, _decider(moved, name)) for name in ("drc", "exact")]
    return Solved(recorded=recorded, choices=choices, frontier=frontier)


@work_out.register
def _draw_problem(order: DrawProblem) -> ProblemOrder:
    if not 1 <= order.round <= MAX_DRAWN:
        raise NotOnChain(f"round {order.round}: only the first {MAX_DRAWN} of a record can be drawn again")
    scenario = load_foreign_scenario(Path(order.scenario))
    scenario = msgspec.structs.replace(scenario, rounds=order.round)
    return ProblemOrder.of(round_problems(scenario, draw_run(scenario))[-1])


def _decider(problem: RoundProblem, name: str) -> Callable[[], Decision]:
    return lambda: decide(problem, name)


def _choose(name: str, problem: RoundProblem, make: Callable[[], Decision]) -> Choice:
    begun_s = time.perf_counter()
    decision = make()
    seconds = time.perf_counter() - begun_s
    found, outcome = answer(problem, decision), evaluate(problem, decision)
    slowest = int(np.argmax(outcome.training_s + outcome.upload_s))
    return Choice(
        scheduler=name,
        status=found.status.value,
        selected=found.selected,
        delay_s=found.delay_s,
        training_s=float(outcome.training_s[slowest]),
        upload_s=float(outcome.upload_s[slowest]),
        mining_s=found.mining_s,
        objective=found.objective,
        gap=found.gap,
        energy_j=found.energy_j,
        cpu_hz=found.cpu_hz,
        mining_hz=found.mining_hz,
        power_w=found.power_w,
        seconds=seconds,
        reason=found.reason,
        served_queue=float(np.sum(problem.queue[decision.selected])),
        tradeoff=problem.tradeoff,
        bound=float(decision.bound) if np.isfinite(decision.bound) else None,
    )


def _read_decision(order: DecisionOrder | None) -> Decision:
    assert order is not None
    return Decision(
        selected=np.array(order.selected, dtype=np.bool_),
        cpu_hz=_column(order.cpu_hz),
        mining_hz=_column(order.mining_hz),
        power_w=_column(order.power_w),
        reason=order.reason,
    )


def _column(values: list[float]) -> PerClient:
    return np.array(values, dtype=np.float64)


@work_out.register
def _pair(order: Pair) -> Paired:
    intervals = [mean_interval(values) for values in order.differences]
    return Paired(means=[one.mean for one in intervals], half_widths=[one.half_width for one in intervals])


@work_out.register
def _find_mining(order: MinedIn) -> Mined:
    scenario = load_foreign_scenario(Path(order.scenario))
    races = MiningRaces(scenario, order.round, _column(order.mining_hz), 0.0)
    return Mined(mining_s=races.finding_s(order.attempt)[order.proposer])


# Models


@work_out.register
def _trace(order: Lineage) -> Traced:
    with ChainStore.open(Path(order.chain), read_only=True) as chain:
        trace = trace_model(chain, order.height)
        parents = _find_parents(chain, trace.made_in)
        return Traced(
            made_in=trace.made_in,
            model=trace.model,
            rule=trace.rule,
            is_stored=chain.has_blob(bytes.fromhex(trace.model)),
            is_trusted=trace.made_in in chain.trusted,
            contributors=[
                Contributor(
                    client=one.client,
                    samples=one.samples,
                    weight=one.weight,
                    update=one.update,
                    since=one.since,
                    last=one.last,
                    num_blocks=one.num_blocks,
                )
                for one in trace.contributions
            ],
            parents=parents,
            compared=None if order.other is None else _compare(chain, order.height, order.other),
            left_out=None if order.without is None else _leave_out(chain, order.height, order.without),
        )


def _find_parents(chain: Store, made_in: int) -> list[Parent]:
    """Return the chain of models that led to a model, itself first."""
    makers: list[int] = []
    for height in range(made_in, 0, -1):
        if len(makers) == _MAX_PARENTS:
            break
        if not get_block(chain, height).body.is_empty:
            makers.append(height)
    heights = makers if len(makers) == _MAX_PARENTS else [*makers, 0]
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
            Parent(
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


def _compare(chain: Store, height: int, other: int) -> Compared:
    digest = model_digest(chain, other).hex()
    try:
        first, second = read_model(chain, height), read_model(chain, other)
    except BdflError as error:
        return Compared(digest=digest, distance=None, relative=None, tensors=[], why=one_line(error))
    layout = layout_of(chain.genesis)
    tensors, begin = [], 0
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        end = begin + int(np.prod(shape, dtype=np.int64))
        mine, theirs = first[begin:end].astype(np.float64), second[begin:end].astype(np.float64)
        tensors.append(
            Tensor(
                name=name,
                shape=list(shape),
                norm=float(np.linalg.norm(mine)),
                other_norm=float(np.linalg.norm(theirs)),
                distance=float(np.linalg.norm(mine - theirs)),
            )
        )
        begin = end
    distance = float(np.linalg.norm(first.astype(np.float64) - second))
    norm = float(np.linalg.norm(first.astype(np.float64)))
    return Compared(
        digest=digest, distance=distance, relative=distance / norm if norm > 0 else 0.0, tensors=tensors, why=None
    )


def _leave_out(chain: Store, height: int, client: int) -> LeftOut:
    try:
        found = leave_out(chain, client, block=height)
    except BdflError as error:
        return LeftOut(distance=None, relative=None, changed_in=[], why=one_line(error))
    return LeftOut(
        distance=found.distance, relative=found.relative_distance, changed_in=list(found.changed_in), why=None
    )


# Background threads for long computations


class _Verifying:
    """Verification of a chain in a background thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
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

    def tell(self) -> Judged:
        verdict, ended_s = self._verdict, self._ended_s
        return Judged(
            is_done=ended_s is not None,
            height=self._height,
            is_valid=None if verdict is None else verdict.is_valid,
            num_signatures=0 if verdict is None else verdict.num_signatures,
            failure=None if verdict is None or verdict.failure is None else self._describe(verdict.failure),
            why=self._why,
            seconds=(time.monotonic() if ended_s is None else ended_s) - self._begun_s,
        )

    def _describe(self, failure: Failure) -> VerifyFailure:
        what, found = (text.replace(str(self.path), self.path.name) for text in (failure.message, failure.found))
        return VerifyFailure(height=failure.block, rule=failure.rule, what=what, expected=failure.expected, found=found)


class _Sweeping:
    """Simulation of a scenario at several V in a background thread."""

    def __init__(self, path: Path) -> None:
        self._result: Swept | None = None
        scenario = load_foreign_scenario(path)
        self._scenario = msgspec.structs.replace(scenario, rounds=min(scenario.rounds, _SWEPT_ROUNDS))
        threading.Thread(target=self._run, daemon=True, name="sweep").start()

    def _run(self) -> None:
        try:
            self._result = _sweep(self._scenario)
        except BdflError as error:
            self._result = Swept(is_done=True, rounds=self._scenario.rounds, points=[], why=one_line(error))

    def tell(self) -> Swept:
        return self._result or Swept(is_done=False, rounds=self._scenario.rounds, points=[], why=None)


def _sweep(scenario: Scenario) -> Swept:
    found = compare(
        scenario,
        ("drc", "exact"),
        num_seeds=SWEPT_SEEDS,
        frontier_tradeoffs=_SWEPT_TRADEOFFS,
        with_bound=False,
        workers=1,
    )
    points = [
        SweepPoint(
            scheduler=one.scheduler,
            tradeoff=one.tradeoff,
            delay_s=one.delay_s.mean,
            delay_half_width_s=one.delay_s.half_width,
            shortfall=one.shortfall.mean,
            shortfall_half_width=one.shortfall.half_width,
        )
        for one in found.frontier
    ]
    return Swept(is_done=True, rounds=scenario.rounds, points=points, why=None)


class _Background:
    """Running and finished computations, by path."""

    def __init__(self) -> None:
        self.verifying: dict[str, _Verifying] = {}
        self.sweeping: dict[str, _Sweeping] = {}


_BACKGROUND = _Background()


@work_out.register
def _verify(order: Verify) -> Judged:
    known = _BACKGROUND.verifying.get(order.chain)
    if known is None or known.is_stale:
        known = _BACKGROUND.verifying[order.chain] = _Verifying(Path(order.chain))
    return known.tell()


@work_out.register
def _play(order: Sweep) -> Swept:
    if order.scenario not in _BACKGROUND.sweeping:
        _BACKGROUND.sweeping[order.scenario] = _Sweeping(Path(order.scenario))
    return _BACKGROUND.sweeping[order.scenario].tell()


@work_out.register
def _read_record(order: ReadRecord) -> object:
    from bdfl.explorer.record_columns import split_record  # here: pyarrow is large and needed only for records

    return split_record(Path(order.folder), Path(order.into))


# Requests


def serve(orders: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests until the input ends."""
    _write(replies, b"")  # ready
    while True:
        size = orders.read(LENGTH_SIZE)
        if len(size) < LENGTH_SIZE:
            return
        content = orders.read(int.from_bytes(size, "big"))
        _write(replies, _ENCODER.encode(_reply(content)))


def _reply(content: bytes) -> Reply:
    try:
        found = work_out(_ORDER.decode(content))
        return Reply(answer=msgspec.Raw(_ENCODER.encode(found)))
    except NotOnChain as error:
        return Reply(refusal=Refusal(what=one_line(error), is_missing=True))
    except BdflError as error:
        return Reply(refusal=Refusal(what=one_line(error), is_missing=False))
    except Exception as error:
        return Reply(refusal=Refusal(what=f"it could not be worked out: {type(error).__name__}", is_missing=False))


def _write(file: BinaryIO, content: bytes) -> None:
    file.write(len(content).to_bytes(LENGTH_SIZE, "big") + content)
    file.flush()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server; this process stops at the end of input
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # output of libraries must not mix with replies
    serve(sys.stdin.buffer, replies)


if __name__ == "__main__":
    main()
