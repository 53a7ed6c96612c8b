"""Node service: validates and opens everything in order, runs until stopped, and closes it."""

import os
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TextIO

import msgspec
import psutil

from bdfl import __version__
from bdfl.errors import BdflError, one_line
from bdfl.federation.membership_change import authorities_of
from bdfl.learning.training import TrainingFailed
from bdfl.ledger.block import Block
from bdfl.ledger.chain import ChainState, modelled_costs
from bdfl.ledger.chain_params import blob_limit, weights_file
from bdfl.ledger.costs import NANO
from bdfl.ledger.member_set import quorum_size
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.ledger.store import QuotaExceeded
from bdfl.node.http import NodeMetrics, serve_pages
from bdfl.node.log import LOG_FILE, NodeLog
from bdfl.node.membership import Membership
from bdfl.node.monitor import NodeMonitor
from bdfl.node.reachability import bind
from bdfl.node.run_file import RunFile, forget_run, lock_folder, noting_end, raise_incarnation, write_run
from bdfl.node.settings import (
    CHAIN_FOLDER,
    Identity,
    NodeSettings,
    NotRunnable,
    begin_training,
    default_quota,
    hosts_of,
    identify,
    num_awaited,
    open_chain,
    validate_owner,
    write_tls,
)
from bdfl.node.status import Absentee, ServiceState, Snapshot, Stage, StateTracker, advise_end, polling
from bdfl.processes import raise_file_limit
from bdfl.protocol.deadlines import back_off_ns
from bdfl.protocol.state import Context
from bdfl.records.files import ROUNDS_FILE
from bdfl.scenario import LiveMode
from bdfl.scenario.files import named_functions
from bdfl.transports.live.admission import Limits, message_limit
from bdfl.transports.live.calibration import calibrate
from bdfl.transports.live.certificates import TlsFiles
from bdfl.transports.live.driver import Barrier, LiveNode
from bdfl.transports.live.measured_work import MeasuredWork
from bdfl.transports.live.round_clock import RoundClock
from bdfl.transports.live.shared_cache import SharedVerificationCache
from bdfl.transports.live.timeouts import Timeouts, live_waits
from bdfl.transports.live.training_process import Failed, Judged, TrainingProcess
from bdfl.transports.live.work import EmulatedWork
from bdfl.transports.live.zenoh_link import Penalties, ZenohLink
from bdfl.transports.live.zenoh_session import LinkSettings

_POLL_S = 0.5
_REFUSED = "refused_"  # prefix of the link's counters of rejected messages


class NodeFailed(BdflError):
    """The error that ended a running node."""


class ThreadFailed(BdflError):
    """An exception that ended a thread of a running node."""


@dataclass(eq=False, repr=False)
class NodeService:
    """A running node and its services, created by `open_node`."""

    settings: NodeSettings
    identity: Identity
    incarnation: int
    store: ChainStore  # this and the next stay open until the service is closed
    tls: TlsFiles
    training: TrainingProcess
    log: NodeLog

    def __post_init__(self) -> None:
        settings, identity = self.settings, self.identity
        genesis, scenario = identity.genesis, identity.scenario
        self._began_s = time.monotonic()
        self._process = psutil.Process()
        self._accuracy: float | None = None
        self._training_failure: str | None = None  # of the last failed training
        self._track = StateTracker(self._log_state)
        self._is_evaluating = self._has_run = False
        self._is_stopping = threading.Event()
        num_members = len(genesis.public_keys)
        self._metrics = NodeMetrics(self.snapshot)
        self._monitor = NodeMonitor(self.log, self._metrics.observe_round, self._notice_block)
        model_size = genesis.genesis.model.size
        functions = frozenset(named_functions(scenario).values())
        cache = SharedVerificationCache.sized_for(num_members, model_size, functions)
        waits = live_waits(scenario, model_size)
        last_height = settings.last_height or scenario.rounds
        self._context = Context(
            identity.number,
            identity.signer,
            waits.timing,
            cache,
            last_height,
            keep_blocks=scenario.ledger.keep_blocks,
        )
        self._work = self._make_work()
        self._zenoh = ZenohLink(self._link_settings(waits))
        self._node = LiveNode(
            self._context,
            self.store,
            self._zenoh,
            self._work,
            folder=settings.folder if settings.records else None,
            observers=(
                self._monitor,
                RoundClock(identity.number, self._work, settings.folder / ROUNDS_FILE),
                Penalties(self._zenoh),
            ),
            barrier=Barrier(
                num_others=num_awaited(identity, self.store.height),
                num_enough=quorum_size(genesis.genesis.law.quorum, num_members) - 1,
            ),
        )
        self._monitor.begin(self._node.state, self.store.block(self.store.height) if self.store.height else None)
        self._members = Membership(
            settings.folder,
            genesis,
            list(identity.admissions),
            self.log,
            reconnect=self._zenoh.reload,
            offer=self._node.offer_change,
        )
        self._members.begin(self._node.state.chain.public_keys)

    def run(self) -> None:
        """Take part until `stop`; raises `NodeFailed` if an error ends the node."""
        with self._guard_threads(), self._serve_pages():
            with polling(self.snapshot, "state"):
                if not self.store.height:
                    self._wait_for_training()
                else:  # peers may need its vote before its data are loaded
                    threading.Thread(target=self._follow_training, name="data", daemon=True).start()
            if self._is_stopping.is_set():
                return
            self.log.info("joining", {"height": self.store.height, "life": self.incarnation})
            self._has_run = True
            try:
                with polling(self.snapshot, "state"), polling(self._members.take_changes, "changes"):
                    self._node.run()
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # including panics of native code
                self.log.error("stopped", {"why": _reason(error)})
                raise NodeFailed(_reason(error)) from error
            self.log.info("stopped", {"height": self.store.height})

    def stop(self) -> None:
        """Make `run` return soon. Thread-safe."""
        self._is_stopping.set()
        self._node.stop()

    def close(self) -> None:
        """Close a node that was never run; a run closes it itself."""
        if not self._has_run:
            self._node.close()

    def snapshot(self) -> Snapshot:
        """Return the node's status. Thread-safe."""
        status, moment, now_ns = self._node.status(), self._monitor.moment, time.monotonic_ns()
        identity, genesis, chain = self.identity, self.identity.genesis, moment.state.chain
        number, began_ns, deadline_s = identity.number, round(self._began_s * NANO), self._deadline_s(chain)
        with self._process.oneshot():
            memory_bytes, num_threads = self._process.memory_info().rss, self._process.num_threads()
        counters = self._zenoh.counters()
        link = {key.removeprefix(_REFUSED): value for key, value in counters.items() if key.startswith(_REFUSED)}
        others = sorted(chain.active - {number})
        names = self._members.names(chain.public_keys)
        failure = self.training.failure
        if failure is None and moment.num_failures:
            failure = self._training_failure or "it gave no model"
        is_ending = self._is_stopping.is_set() or status.stopped_by is not None
        found = Snapshot(
            number=number,
            name=identity.card.name,
            chain=genesis.chain.hex(),
            version=__version__,
            pid=os.getpid(),
            up_s=time.monotonic() - self._began_s,
            incarnation=self.incarnation,
            height=chain.height,
            last_height=self._context.last_height,
            phase=moment.state.phase.value,
            attempt=moment.state.attempt,
            is_training=self._monitor.training.is_running,
            is_mining=self._monitor.mining.is_running,
            present=tuple(sorted(status.present)),
            num_members=len(chain.active),
            queues={
                "events": status.num_waiting,
                "rehearsals": status.num_rehearsing,
                "effects": status.num_effects,
                **self._zenoh.queued,
            },
            counters={
                **{key: value for key, value in counters.items() if not key.startswith(_REFUSED)},
                "commits": moment.num_commits,
                "overflow": status.num_dropped,
                "training_restarts": self.training.num_restarts,
            },
            refused={**status.refused, **link},
            last_block=moment.last_block,
            accuracy=self._accuracy,
            deadline_s=deadline_s,
            memory_bytes=memory_bytes,
            num_threads=num_threads,
            store_bytes=self.store.num_bytes_on_disk,
            model_bytes=self.store.num_bytes,
            quota_bytes=self.store.max_bytes or 0,
            training_s=self._monitor.training.seconds(now_ns),
            mining_s=self._monitor.mining.seconds(now_ns),
            stage=self._find_stage(is_ending=is_ending),
            loop_s=max(0, now_ns - status.turned_ns) / NANO,
            is_member=number in chain.active,
            is_removed=chain.is_over(number),
            num_trusted=status.num_trusted,
            end=(status.stopped_by or "") if is_ending else moment.state.end,
            voters=tuple(sorted(chain.active & (status.present | {number}))),
            quorum=chain.quorum,
            missing=tuple(
                Absentee(number=one, name=names[one], silent_s=silent_s, is_connected=one in status.present)
                for one, silent_s in self._monitor.silences(others, now_ns, began_ns).items()
                if one not in status.present or silent_s > deadline_s
            ),
            num_connections=self._zenoh.num_transports,
            peers=self.settings.peers,
            listen=self.settings.listen,
            others_height=self._monitor.claimed_height(others, len(chain.active) - chain.quorum),
            training_failure=failure,
            num_failures=moment.num_failures,
            num_scheduled=len(chain.schedule.selected),
            num_missed=chain.misses[number] if number in chain.active else 0,
            is_offender=number in chain.offenders,
            has_twin=self._zenoh.has_twin,
            clock_offset_s=None if status.clock_offset_ms is None else status.clock_offset_ms / 1000,
        )
        return self._track.judge(found, time.monotonic())

    def _find_stage(self, *, is_ending: bool) -> Stage:
        if is_ending:
            return Stage.ENDING
        if self._monitor.has_begun:
            return Stage.RUNNING
        return Stage.GATHERING if self._has_run else Stage.PREPARING

    # Components

    def _make_work(self) -> EmulatedWork | MeasuredWork:
        number, scenario = self.identity.number, self.identity.scenario
        if scenario.live.mode is LiveMode.EMULATE:
            return EmulatedWork(number, scenario, self.training, on_failure=self._log_training_failure)
        self.log.info("measuring what this machine can do")
        calibration = calibrate(self.training, scenario.ledger.work, threads=scenario.learning.threads)
        return MeasuredWork(number, scenario, self.training, calibration, on_failure=self._log_training_failure)

    def _link_settings(self, waits: Timeouts) -> LinkSettings:
        identity, settings, genesis = self.identity, self.settings, self.identity.genesis
        return LinkSettings(
            number=identity.number,
            signer=identity.signer,
            chain=genesis.chain,
            public_keys=genesis.public_keys,
            incarnation=self.incarnation,
            listen=settings.listen,
            peers=settings.peers,
            tls=self.tls,
            max_blob_size=blob_limit(genesis.genesis),
            fetch_s=waits.fetch_s,
            lease_s=waits.lease_s,
            num_access_points=len(genesis.access_points),
            limits=Limits(max_message_size=message_limit(len(genesis.public_keys))),
        )

    @contextmanager
    def _serve_pages(self) -> Iterator[None]:
        """Serve the HTTP pages and write the run file inside the `with` block."""
        settings = self.settings
        with serve_pages(settings.metrics, self._metrics, settings.folder / CHAIN_FOLDER) as server:
            run = _describe_run(settings, self.identity)
            write_run(settings.folder, msgspec.structs.replace(run, metrics=server and server.address))
            yield

    @contextmanager
    def _guard_threads(self) -> Iterator[None]:
        """Stop the node if any of its threads fails: it could otherwise no longer send or receive."""
        before = threading.excepthook
        threading.excepthook = self._end_with_thread
        try:
            yield
        finally:
            threading.excepthook = before

    def _end_with_thread(self, ended: threading.ExceptHookArgs) -> None:
        error = ended.exc_value or RuntimeError(ended.exc_type.__name__)
        name = "unknown" if ended.thread is None else ended.thread.name
        place = traceback.extract_tb(ended.exc_traceback)[-1:]
        where = "".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in place)
        self.log.error("thread", {"name": name, "why": _reason(error), "where": where})
        if not self._is_stopping.is_set():
            self._node.fail(ThreadFailed(f"thread {name}: {_reason(error)}"))

    def _wait_for_training(self) -> None:
        """Block until the data are loaded; raises `NotRunnable` if that fails for good."""
        while not self._is_stopping.is_set() and self._node.status().stopped_by is None:
            try:
                ready = self.training.wait_ready(_POLL_S)
            except TrainingFailed as error:
                if self.training.failure is not None:
                    raise NotRunnable(str(error)) from None
                continue
            self.log.info("data", {"samples": ready.samples, "test_samples": ready.test_samples})
            return

    def _follow_training(self) -> None:
        try:
            self._wait_for_training()
        except NotRunnable as error:
            self.log.error("data", {"why": str(error), "advice": "this node votes and does not train"})

    # Evaluation and logs

    def _notice_block(self, block: Block, chain: ChainState) -> None:
        self._evaluate(block)
        self._members.follow(chain.public_keys)

    def _evaluate(self, block: Block) -> None:
        """Evaluate the newest model on the test data, unless an evaluation is still running."""
        if not self.settings.evaluates or self._is_evaluating:
            return
        model = self.store.read_unchecked(block.body.model)
        if model is None:
            return
        self._is_evaluating = True
        weights = weights_file(self.identity.genesis.genesis, model)
        self.training.evaluate(weights, lambda answer: self._take_evaluation(block.header.height, answer))

    def _take_evaluation(self, height: int, answer: Judged | Failed) -> None:
        self._is_evaluating = False
        if isinstance(answer, Judged) and isfinite(answer.accuracy):
            self._accuracy = answer.accuracy
            facts = {"height": height, "accuracy": round(answer.accuracy, 4), "loss": round(answer.loss, 4)}
            self.log.info("accuracy", facts)

    def _log_state(self, found: Snapshot) -> None:
        """Log a state change; `run` logs the end."""
        if found.state is ServiceState.STOPPED:
            return
        facts = {"now": found.state.value, "why": found.reason}
        if found.state is ServiceState.FINISHED:
            facts["next"] = advise_end(self.settings.folder)
        is_stalled = found.state is ServiceState.STALLED
        tell = self.log.error if is_stalled else self.log.info if found.state.is_well else self.log.warn
        tell("state", facts)

    def _log_training_failure(self, reason: str) -> None:
        self._training_failure = reason
        self.log.error("training", {"why": reason})

    def _deadline_s(self, chain: ChainState) -> float:
        """Return the longest duration of a normal round: until an idle block is allowed, plus a first attempt."""
        timing, cache = self._context.timing, self._context.cache
        costs = cache.once(modelled_costs, chain)
        mining_ns = costs.mining_ns * timing.time_scale
        return (back_off_ns(chain, timing, cache) + mining_ns + 1.5 * timing.attempt_ns) / NANO


@contextmanager
def open_node(settings: NodeSettings, *, echo: TextIO | None = None) -> Iterator[NodeService]:
    """Open everything a node needs, to be run once; raises a `BdflError` with a one-line message."""
    raise_file_limit()
    identity = identify(settings)
    with ExitStack() as resources:
        resources.enter_context(lock_folder(settings.folder))
        validate_owner(settings.folder, identity.signer)
        for address in settings.listen:  # before slow steps, and with a clearer message than zenoh's
            try:
                bind(address).close()
            except OSError as error:
                advice = "choose another, or end who listens there"
                raise NotRunnable(f"--listen {address}: {error.strerror or error}; {advice}") from None
        forget_run(settings.folder)
        resources.enter_context(noting_end(settings.folder, _describe_run(settings, identity), _reason))
        log = NodeLog(settings.folder / LOG_FILE, echo=echo, name=f"node {identity.number}")
        try:
            genesis, quota = identity.genesis, settings.quota_bytes
            if quota is None:
                quota = default_quota(genesis, identity.scenario, settings.last_height)
            store = resources.enter_context(open_chain(settings.folder / CHAIN_FOLDER, genesis, quota))
            authorities = authorities_of(identity.genesis, identity.admissions)
            authorities[identity.number] = identity.card.authority
            hosts = hosts_of(settings.listen)
            tls = write_tls(settings.folder, identity.genesis, identity.signer, identity.number, hosts, authorities)
            incarnation = raise_incarnation(settings.folder)
        except OSError as error:
            raise NotRunnable(f"{error.filename or settings.folder}: {error.strerror}") from None
        training = begin_training(identity, settings.data, settings.flower, settings.folder)
        resources.callback(training.close)
        service = NodeService(settings, identity, incarnation, store, tls, training, log)
        resources.callback(service.close)
        yield service


def _describe_run(settings: NodeSettings, identity: Identity) -> RunFile:
    return RunFile(
        kind="node",
        pid=os.getpid(),
        started=time.time(),
        version=__version__,
        chain=identity.genesis.chain.hex(),
        number=identity.number,
        listen=settings.listen,
    )


def _reason(error: BaseException) -> str:
    """Explain in one line what ended a node."""
    text = one_line(error)
    if isinstance(error, QuotaExceeded):
        text += "; start it with a larger --quota, or agree on ledger.keep_blocks, which drops old models"
    return text if isinstance(error, BdflError) else f"{type(error).__name__}: {text}"
