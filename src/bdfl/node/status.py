"""Node status: a snapshot, a state with its reason, and a client that queries both."""

import http.client
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from math import isnan
from pathlib import Path

import msgspec

from bdfl.addresses import split_address
from bdfl.ledger.block import TIME_TOLERANCE_MS
from bdfl.node.run_file import BadFolder, RunFile, is_locked, read_run

STALLED_AFTER = 3.0  # deadlines without a block despite a quorum
BEHIND_AFTER = 2  # blocks that peers have and this node lacks: one is normal
MISSED_AFTER = 2  # updates missed in a row: one may have been late
CLOCK_TOLERANCE_S = TIME_TOLERANCE_MS / 1000
WEDGED_S = 60.0  # an event loop blocked this long does not recover
_POLL_S = 1.0
_MAX_NAMED = 4  # members in one sentence
_MAX_ANSWER = 2**22  # bytes


class ServiceState(StrEnum):
    """State of a node for its operator. The protocol's `Phase` is a detail of `WORKING`."""

    STARTING = "starting"
    WAITING = "waiting"  # for a quorum
    WORKING = "working"
    CATCHING_UP = "catching-up"
    NOT_TRAINING = "not-training"
    MISCONFIGURED = "misconfigured"  # wrong clock or duplicate key: peers reject it
    STALLED = "stalled"
    FINISHED = "finished"
    REMOVED = "removed"  # by the other members
    STOPPED = "stopped"

    @property
    def is_ready(self) -> bool:
        """True if the node is fully operational."""
        return self in (ServiceState.WORKING, ServiceState.CATCHING_UP, ServiceState.FINISHED)

    @property
    def is_well(self) -> bool:
        """True if no action is needed."""
        return self.is_ready or self is ServiceState.STARTING


class Stage(StrEnum):
    """Progress of a node's process."""

    PREPARING = "preparing"  # loading its data
    GATHERING = "gathering"  # connecting, before its first event
    RUNNING = "running"
    ENDING = "ending"


class LastBlock(msgspec.Struct, frozen=True, kw_only=True):
    """The newest block of a node."""

    height: int
    digest: str
    proposer: int
    attempt: int
    age_s: float | None  # since its commit here; none: before this start
    round_s: float | None  # since the previous block; none: unknown
    is_empty: bool
    num_updates: int


class Absentee(msgspec.Struct, frozen=True, kw_only=True):
    """A member that is disconnected, or silent for a deadline."""

    number: int
    name: str
    silent_s: float  # since its last message, or since this node started
    is_connected: bool


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Status of a node at one moment."""

    number: int
    name: str
    chain: str  # its id
    version: str
    pid: int
    up_s: float
    incarnation: int = msgspec.field(name="life")  # number of this start
    height: int
    last_height: int | None  # the end of the run
    phase: str
    attempt: int
    is_training: bool
    is_mining: bool
    present: tuple[int, ...]  # other members that are connected
    num_members: int
    queues: Mapping[str, int]  # lengths
    counters: Mapping[str, int]  # of the link and the node, by name
    refused: Mapping[str, int]  # dropped messages, by reason
    last_block: LastBlock | None
    accuracy: float | None  # of the newest model, if the node evaluates
    deadline_s: float  # longest expected time for a block
    memory_bytes: int
    num_threads: int
    store_bytes: int
    model_bytes: int = 0  # part of them, in models
    quota_bytes: int = 0  # limit on models; 0: none
    training_s: float  # since this start
    mining_s: float
    stage: Stage = Stage.RUNNING
    loop_s: float = 0.0  # since the event loop last ran
    is_member: bool = True  # at the next height
    is_removed: bool = False
    num_trusted: int = 0  # blocks whose model it never recomputed
    end: str = ""  # reason why its part of the chain is complete, or its process ends
    voters: tuple[int, ...] = ()  # members whose votes can reach this node, itself included
    quorum: int = 0  # votes needed
    able_s: float | None = None  # time during which blocks could come: from a quorum, or from peers ahead
    missing: tuple[Absentee, ...] = ()
    num_connections: int = 0  # to members and access points
    peers: tuple[str, ...] = ()  # configured addresses to connect to
    listen: tuple[str, ...] = ()
    others_height: int = 0  # a height claimed by more peers than may be faulty
    training_failure: str | None = None  # of the last training; none: it succeeded
    num_failures: int = 0  # consecutive failures of training
    num_scheduled: int = 1  # members selected to train in this round
    num_missed: int = 0  # consecutive updates missing from the chain
    is_offender: bool = False  # the chain has evidence against it
    has_twin: bool = False  # another node runs with this member's key
    clock_offset_s: float | None = None  # wall clock minus the members' median; none: unknown
    state: ServiceState = ServiceState.STARTING
    reason: str = ""  # one sentence, with advice if action is needed
    since_s: float = 0.0  # in this state

    @property
    def is_done(self) -> bool:
        return self.last_height is not None and self.height >= self.last_height

    @property
    def behind(self) -> int:
        """Blocks that peers have and this node lacks; 0 if too few to matter, or if no peer is connected."""
        lacking = self.others_height - self.height
        return lacking if lacking >= BEHIND_AFTER and self.present else 0

    @property
    def is_alive(self) -> bool:
        """True if the event loop runs; before the first event there is none."""
        return self.stage is not Stage.RUNNING or self.loop_s < WEDGED_S


def judge_state(found: Snapshot) -> tuple[ServiceState, str]:
    """Derive a node's state and the reason from its snapshot.

    The first matching rule applies. Decided blocks can be fetched without a quorum, so a node that is behind catches up
    even while it cannot vote.
    """
    if found.stage is Stage.ENDING:
        return ServiceState.STOPPED, found.end or "asked to stop"
    if found.is_removed:
        return ServiceState.REMOVED, f"{found.end}; its node may be stopped"
    if found.end:
        return ServiceState.FINISHED, f"{found.end}; others are still served"
    if found.stage is Stage.PREPARING:
        return ServiceState.STARTING, "loads its data"
    misconfigured = _describe_misconfiguration(found)
    if misconfigured:
        return ServiceState.MISCONFIGURED, misconfigured
    if found.able_s is None:
        return ServiceState.WAITING, _describe_wait(found)
    if found.stage is Stage.GATHERING:
        away = _list(_name(one) for one in found.missing if not one.is_connected)
        return ServiceState.STARTING, f"{_count_votes(found)}; the first round waits a little for {away or 'all'}"
    if not found.is_alive:
        return ServiceState.STALLED, f"its event loop did not turn for {show_duration(found.loop_s)}: restart the node"
    last = found.last_block
    block_s = found.able_s if last is None or last.age_s is None else min(found.able_s, last.age_s)
    limit_s = STALLED_AFTER * found.deadline_s
    if block_s > limit_s:
        return ServiceState.STALLED, _describe_stall(found, block_s, limit_s)
    if found.behind:
        return ServiceState.CATCHING_UP, f"at block {found.height}, {found.behind} behind the others"
    if not found.is_member:
        return ServiceState.CATCHING_UP, f"at block {found.height}, before its admission: fetches the chain"
    why_not = _describe_no_training(found)
    if why_not:
        return ServiceState.NOT_TRAINING, why_not
    idle = "" if found.num_scheduled else "; nobody is scheduled to train in this round"
    return ServiceState.WORKING, f"{len(found.voters)} of {found.num_members} votes can be reached{idle}"


class StateTracker:
    """Tracks how long a node has been in its state. Thread-safe."""

    def __init__(self, on_change: Callable[[Snapshot], None]) -> None:
        """`on_change` is called for every new state, and for a wait with other voters than before."""
        self._on_change = on_change
        self._lock = threading.Lock()
        self._able_since_s: float | None = None
        self._since_s = 0.0
        self._state: ServiceState | None = None
        self._news: tuple[ServiceState, tuple[int, ...]] | None = None

    def judge(self, found: Snapshot, now_s: float) -> Snapshot:
        """Return the snapshot with state, reason and duration; `now_s` is a monotonic clock."""
        with self._lock:
            if len(found.voters) < found.quorum and not found.behind:
                self._able_since_s = None
            elif self._able_since_s is None or found.stage is not Stage.RUNNING:
                self._able_since_s = now_s  # before the first event no block can come
            able_s = None if self._able_since_s is None else max(0.0, now_s - self._able_since_s)
            found = msgspec.structs.replace(found, able_s=able_s)
            state, reason = judge_state(found)
            if state is not self._state:
                self._state, self._since_s = state, now_s
            since_s = max(0.0, now_s - self._since_s)
            judged = msgspec.structs.replace(found, state=state, reason=reason, since_s=since_s)
            news = state, found.voters if state is ServiceState.WAITING else ()
            if news != self._news:
                self._news = news
                self._on_change(judged)
        return judged


@contextmanager
def polling(poll: Callable[[], object], name: str) -> Iterator[None]:
    """Call `poll` every second from a thread of that name inside the `with` block."""
    is_over = threading.Event()

    def run() -> None:
        poll()
        while not is_over.wait(_POLL_S):
            poll()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _count_votes(found: Snapshot) -> str:
    who = f"member{'s' if len(found.voters) > 1 else ''} {_list(map(str, found.voters))}" if found.voters else "none"
    return f"{len(found.voters)} of {found.num_members} votes can be reached ({who}), {found.quorum} needed"


def _describe_wait(found: Snapshot) -> str:
    votes, more = _count_votes(found), found.quorum - len(found.voters)
    if found.num_connections:
        need = "one more member" if more == 1 else f"{more} more members"
        return f"{votes}; not heard: {_name_away(found)}; need {need}, a listening address or an access point"
    if found.peers:
        return f"{votes}; no connection to {_list(found.peers)}: is it started, is the port open?"
    if found.listen:
        return f"{votes}; nobody has connected to {_list(found.listen)}: are others started, is the port open?"
    return f"{votes}; nobody can be reached: neither --peer nor --listen is given"


def _describe_stall(found: Snapshot, block_s: float, limit_s: float) -> str:
    parts = [f"no block for {show_duration(block_s)}, at most {show_duration(limit_s)} expected; {_count_votes(found)}"]
    parts += [f"{found.behind} blocks behind the others"] * bool(found.behind)
    silent = _list(map(_name_silent, (one for one in found.missing if one.is_connected)))
    away = _name_away(found)
    parts += [f"not heard: {away}"] * bool(away) + [f"connected but silent: {silent}"] * bool(silent)
    return "; ".join([*parts, f"attempt {found.attempt}"])


def _describe_misconfiguration(found: Snapshot) -> str:
    """Describe a wrong clock or duplicate key; empty if none is known."""
    if found.has_twin:
        return "another node runs as this member: two with one key vote against each other; stop one of them"
    offset_s = found.clock_offset_s or 0.0
    if abs(offset_s) <= CLOCK_TOLERANCE_S:
        return ""
    off = f"{show_duration(abs(offset_s))} {'ahead of' if offset_s > 0 else 'behind'}"
    return f"its clock is {off} the other members': set it, best by NTP"


def _describe_no_training(found: Snapshot) -> str:
    """Describe why a member that should train gives no updates; empty if nothing is known to be wrong."""
    if found.training_failure is not None:
        times = "" if found.num_failures < 2 else f" {found.num_failures} times in a row"
        return f"training failed{times}: {found.training_failure}"
    if found.is_offender:
        return "evidence against this member is in the chain: it is never scheduled again; bdfl chain blame says more"
    if found.num_missed >= MISSED_AFTER:
        return (
            f"the last {found.num_missed} times it was scheduled, its update did not come in time: is this machine or "
            "its line too slow?"
        )
    return ""


def _name_away(found: Snapshot) -> str:
    return _list(map(_name_silent, (one for one in found.missing if not one.is_connected)))


def _name_silent(one: Absentee) -> str:
    return f"{_name(one)} for {show_duration(one.silent_s)}"


def _name(one: Absentee) -> str:
    plain = f"member {one.number}"
    return plain if one.name == plain else f"{plain} ({one.name})"


def _list(names: Iterable[str]) -> str:
    """Join the first few names, and count the rest."""
    listed = list(names)
    more = len(listed) - _MAX_NAMED
    return ", ".join(listed[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def show_duration(seconds: float) -> str:
    """Format seconds: 40 s, 12 min, 3.5 h."""
    if isnan(seconds):
        return "?"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


# Status client


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """Status of a process from its folder and its status page."""

    folder: str
    is_up: bool
    pid: int | None
    state: ServiceState | None  # none: unknown, for the given reason
    reason: str
    since_s: float | None = None
    snapshot: Snapshot | None = None  # none: the process is down, does not answer, or is not a node
    listen: tuple[str, ...] = ()  # addresses at which peers reach it


def read_status(folder: Path, timeout_s: float = 1.0) -> NodeView:
    """Return the status of a folder's process."""
    is_up = is_locked(folder)
    try:
        run = read_run(folder)
    except BadFolder as error:
        return NodeView(folder=str(folder), is_up=is_up, pid=None, state=None, reason=str(error))
    has_ended = not is_up or (run is not None and run.ended is not None)
    found = None if has_ended or run is None or run.metrics is None else query_status(run.metrics, timeout_s)
    state: ServiceState | None
    since_s = None
    if has_ended:
        state = ServiceState.STOPPED
        reason, since_s = _describe_end(run)
    elif run is None:
        state, reason = ServiceState.STARTING, "opens its folder"
    elif found is not None:
        state, reason, since_s = found.state, found.reason, found.since_s
    elif run.kind != "node":
        state, reason = ServiceState.WORKING, "forwards"
    else:
        silence = "its status page is off" if run.metrics is None else f"no answer within {timeout_s:g} s"
        state, reason = None, f"runs as process {run.pid}, {silence}: see node.log"
    return NodeView(
        folder=str(folder),
        is_up=is_up,
        pid=None if has_ended or run is None else run.pid,
        state=state,
        reason=reason,
        since_s=since_s,
        snapshot=found,
        listen=() if has_ended or run is None else run.listen,
    )


def _describe_end(run: RunFile | None) -> tuple[str, float | None]:
    """Return the reason for which a process does not run, and the time since its end (s)."""
    if run is None:
        return "not started yet", None
    if run.ended is None:
        return "its process was killed or the machine went down; started again it goes on", None
    return run.why, max(0.0, time.time() - run.ended)


def query_status(address: str, timeout_s: float = 1.0) -> Snapshot | None:
    """Query the status page at HOST:PORT; None: no answer."""
    connection = http.client.HTTPConnection(*split_address(address), timeout=timeout_s)
    try:
        connection.request("GET", "/status.json")
        content = connection.getresponse().read(_MAX_ANSWER)
        return msgspec.json.decode(content, type=Snapshot)
    except (OSError, http.client.HTTPException, msgspec.DecodeError):
        return None
    finally:
        connection.close()


def advise_end(folder: Path | str) -> str:
    """Advise how to view and verify a finished chain."""
    return f"look at it with bdfl explore {folder}, verify it with bdfl chain verify {folder}"
