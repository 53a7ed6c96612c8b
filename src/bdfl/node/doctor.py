"""Diagnosis of a node, before or while it runs: one finding per check, with advice."""

import shutil
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography import x509

from bdfl.errors import BdflError, install_command
from bdfl.federation.genesis_file import GenesisFile, read_genesis, read_scenario
from bdfl.federation.keys import load_key
from bdfl.federation.membership_change import ChangeFile, read_admissions
from bdfl.identity import Signer
from bdfl.learning.training import TrainingFailed
from bdfl.ledger.chain_params import blob_limit
from bdfl.ledger.member_set import MemberSet, read_member_set
from bdfl.ledger.sqlite_store import DATABASE_FILE, ChainStore
from bdfl.ledger.store import DamagedStore, StoreError, StoreInUse
from bdfl.node.log import LOG_FILE
from bdfl.node.reachability import (
    SKEW_S,
    CheckResult,
    KnownMembers,
    NodeOptions,
    Verdict,
    check_peers,
    check_port,
    issued_s,
)
from bdfl.node.run_file import INCARNATION_FILE, BadFolder, is_locked, read_run
from bdfl.node.settings import (
    CHAIN_FOLDER,
    LEAF_FILE,
    TLS_FOLDER,
    Identity,
    WrongChain,
    begin_training,
    default_quota,
    validate_owner,
)
from bdfl.node.status import read_status
from bdfl.scenario import Scenario
from bdfl.transports.live.certificates import AUTHORITY_DAYS
from bdfl.transports.live.event_log import EVENTS_FILE

_PACKAGES = {"eclipse-zenoh": "live", "torch": "learn", "prometheus-client": "live", "psutil": "live"}  # by extra
_DATA_S = 120.0  # to load the data and run the model on one batch
_LEAST_ROOM = 64 * 2**20  # for logs and other files
_BLOCK_BYTES = 4096  # of a block, without its members' part
_MEMBER_BYTES = 1024  # of votes, conditions and the like, per member
_SOON_DAYS = 14
_BEGIN_ANEW = (
    f"put {CHAIN_FOLDER} and {EVENTS_FILE} aside and keep the rest of the folder, above all the file "
    f"{INCARNATION_FILE}; start again when the others have decided the height at which this one was, or it may vote "
    "twice there"
)


def examine(options: NodeOptions, now_s: float | None = None) -> Iterator[CheckResult]:
    """Run every check that does not need the node started, most important first."""
    shift_s = 0.0 if now_s is None else now_s - time.time()  # the clock advances while the data are tested
    has_packages = yield from _check_packages()
    signer = yield from _check_key(options.key)
    genesis = yield from _check_genesis(options)
    members = scenario = None
    if genesis is not None:
        members = KnownMembers(genesis, (yield from _check_admissions(options, genesis)), signer)
        scenario = read_scenario(genesis.scenario, _allowed(options))
        if signer is not None:
            yield _check_membership(members)
        yield from _check_certificates(members, time.time() + shift_s)
    yield _check_clock(options, members, time.time() + shift_s)
    is_running = options.folder is not None and is_locked(options.folder)
    if options.folder is not None:
        height = yield from _check_store(options.folder / CHAIN_FOLDER, members, is_running=is_running)
        yield from _check_folder(options.folder, members, scenario, height, is_running=is_running)
        if members is not None and scenario is not None:
            yield _check_quota(options, members.genesis, scenario)
    if has_packages and members is not None and scenario is not None:
        yield from _check_data(options, members, scenario)
    for address in (*options.listen, *([] if options.metrics is None else [options.metrics])):
        yield check_port(address, is_running=is_running)
    snapshot = read_status(options.folder).snapshot if options.folder is not None and is_running else None
    yield from check_peers(
        options.peers,
        members,
        time.time() + shift_s,
        present=None if snapshot is None else frozenset(snapshot.present),
        own_leaf=None if options.folder is None else options.folder / TLS_FOLDER / LEAF_FILE,
        is_listening=bool(options.listen),
    )


def _allowed(options: NodeOptions) -> frozenset[str]:
    return options.allowed | ({options.flower} if options.flower is not None else frozenset())


def _check_packages() -> Generator[CheckResult, None, bool]:
    found = []
    for name, extra in _PACKAGES.items():
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            yield CheckResult("packages", Verdict.BAD, f"{name} is missing", install_command(extra))
    if len(found) == len(_PACKAGES):
        yield CheckResult("packages", Verdict.OK, ", ".join(found))
    return len(found) == len(_PACKAGES)


def _check_key(path: Path | None) -> Generator[CheckResult, None, Signer | None]:
    if path is None:
        return None
    try:
        signer = load_key(path)
    except BdflError as error:
        yield CheckResult("key", Verdict.BAD, str(error))
        return None
    yield CheckResult("key", Verdict.OK, f"{path}, public key {signer.public_key.hex()[:16]}")
    return signer


def _check_genesis(options: NodeOptions) -> Generator[CheckResult, None, GenesisFile | None]:
    if options.genesis is None:
        return None
    try:
        genesis = read_genesis(options.genesis, allowed=_allowed(options))
    except BdflError as error:
        yield CheckResult("genesis", Verdict.BAD, str(error))
        return None
    name = f"chain {genesis.chain.hex()[:16]}, {len(genesis.public_keys)} members"
    missing = genesis.missing_signatures
    if not missing:
        yield CheckResult("genesis", Verdict.OK, f"{name}, signed by all")
    else:
        verdict = Verdict.WARN if options.is_unsigned_allowed else Verdict.BAD
        who = ", ".join(map(str, missing[:8])) + (" ..." if len(missing) > 8 else "")
        yield CheckResult("genesis", verdict, f"{name}, not signed by {who}", "they sign with bdfl genesis sign")
    return genesis


def _check_admissions(
    options: NodeOptions, genesis: GenesisFile
) -> Generator[CheckResult, None, tuple[ChangeFile, ...]]:
    try:
        found = read_admissions(options.folder, options.admissions, genesis)
    except BdflError as error:
        yield CheckResult("admission", Verdict.BAD, str(error), "ask whoever proposed it for the file again")
        return ()
    if found:
        numbers = sorted({file.change.number for file in found})
        yield CheckResult("admission", Verdict.OK, f"came later: {', '.join(map(str, numbers))}")
    return found


def _check_membership(members: KnownMembers) -> CheckResult:
    number = members.number
    if number is None:
        advice = "the wrong key, the wrong genesis, or no --admission of this chain"
        return CheckResult("member", Verdict.BAD, "the key is no member's", advice)
    return CheckResult("member", Verdict.OK, f"number {number}, {members.name_of(number)!r}")


def _check_certificates(members: KnownMembers, now_s: float) -> Iterator[CheckResult]:
    """Check validity of all certificates: an invalid one is BAD if it is this node's own, else a warning."""
    genesis, own = members.genesis, members.number
    now = datetime.fromtimestamp(now_s, UTC)
    names = [(f"member {number}", data, number == own) for number, data in sorted(members.authorities.items())]
    points = zip(genesis.genesis.access_points, genesis.access_points, strict=True)
    names += [(f"access point {point.name}", data, False) for point, data in points]
    first_end: datetime | None = None
    is_fine = True
    for name, data, is_own in names:
        certificate = x509.load_der_x509_certificate(data)
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        first_end = end if first_end is None else min(first_end, end)
        if begin <= now <= end:
            continue
        is_fine = False
        verdict = Verdict.BAD if is_own else Verdict.WARN
        if now > end:
            yield CheckResult("certificate", verdict, f"{name}: expired on {end:%Y-%m-%d}", "a new genesis is needed")
        else:
            yield CheckResult(
                "certificate", verdict, f"{name}: not valid before {begin:%Y-%m-%d %H:%M} UTC", "set the clock"
            )
    if is_fine and first_end is not None:
        days = (first_end - now).days
        verdict = Verdict.OK if days > _SOON_DAYS else Verdict.WARN
        yield CheckResult("certificate", verdict, f"{len(names)} valid, the first expires in {days} days")


def _check_folder(
    folder: Path, members: KnownMembers | None, scenario: Scenario | None, height: int, *, is_running: bool
) -> Iterator[CheckResult]:
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not place.is_dir() or not _is_writable(place):
        yield CheckResult(
            "folder", Verdict.BAD, f"{folder}: {place} is not a folder one can write to", "choose another"
        )
        return
    try:
        if members is not None and members.signer is not None:
            validate_owner(folder, members.signer)
        state = "a node works in it" if is_running else "free" if folder.exists() else "will be made"
        yield CheckResult("folder", Verdict.OK, f"{folder}: {state}")
    except WrongChain as error:
        yield CheckResult("folder", Verdict.BAD, str(error))
    needed, what = _LEAST_ROOM, "logs"
    if members is not None and scenario is not None:
        needed, what = needed + _round_bytes(members.genesis, scenario, height), f"{scenario.rounds} rounds"
    free = shutil.disk_usage(place).free
    room = f"{_megabytes(free)} free, about {_megabytes(needed)} needed for {what}"
    if free < needed:
        yield CheckResult(
            "disk", Verdict.BAD, room, "make room, or agree on ledger.keep_blocks, which drops old models"
        )
    else:
        yield CheckResult("disk", Verdict.OK, room)


def _check_quota(options: NodeOptions, genesis: GenesisFile, scenario: Scenario) -> CheckResult:
    quota = default_quota(genesis, scenario) if options.quota_bytes is None else options.quota_bytes
    needed = _model_bytes(genesis, scenario, 0)
    found = f"models take up to {_megabytes(quota)}, about {_megabytes(needed)} needed"
    if quota < needed:
        return CheckResult("quota", Verdict.BAD, found, "a larger --quota, or agree on ledger.keep_blocks")
    return CheckResult("quota", Verdict.OK, found)


def _round_bytes(genesis: GenesisFile, scenario: Scenario, height: int) -> int:
    """Estimate the storage needed for the remaining rounds; blocks are never pruned."""
    num_rounds = max(scenario.rounds - height, 0)
    blocks = num_rounds * (_BLOCK_BYTES + _MEMBER_BYTES * len(genesis.public_keys))
    return _model_bytes(genesis, scenario, height) + blocks


def _model_bytes(genesis: GenesisFile, scenario: Scenario, height: int) -> int:
    """Estimate the size of client and global models retained over the remaining rounds.

    Assumes that as many clients train in each round as in the first.
    """
    begin = genesis.genesis
    num_rounds = max(scenario.rounds - height, 0)
    num_kept = min(num_rounds, scenario.ledger.keep_blocks or num_rounds)
    return num_kept * (begin.model.size * len(begin.schedule.selected) + blob_limit(begin))


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.0f} MB"


def _is_writable(folder: Path) -> bool:
    try:
        with TemporaryDirectory(dir=folder, prefix=".doctor-"):
            return True
    except OSError:
        return False


def _check_store(path: Path, members: KnownMembers | None, *, is_running: bool) -> Generator[CheckResult, None, int]:
    """Check the stored chain and this node's membership in it; return the chain's height."""
    if not (path / DATABASE_FILE).is_file():
        yield CheckResult("store", Verdict.OK, f"{path}: none yet")
        return 0
    try:
        with ChainStore.open(path, read_only=is_running) as store:  # opening for writing verifies everything
            height, begin, roll = store.height, store.genesis, read_member_set(store.genesis, store.blocks())
    except StoreInUse as error:
        yield CheckResult("store", Verdict.BAD, str(error), "end the other process")
        return 0
    except StoreError as error:
        yield CheckResult("store", Verdict.BAD, str(error), _BEGIN_ANEW if isinstance(error, DamagedStore) else "")
        return 0
    if members is not None and begin != members.genesis.genesis:
        yield CheckResult(
            "store", Verdict.BAD, f"{path}: of another genesis", "another folder, or the other genesis file"
        )
        return 0
    yield CheckResult("store", Verdict.OK, f"{path}: {height} blocks" + ("" if is_running else ", nothing is missing"))
    if members is not None:
        yield from _check_removal(members.number, roll)
    return height


def _check_removal(number: int | None, roll: MemberSet) -> Iterator[CheckResult]:
    last = None if number is None or number >= len(roll.members) else roll.last_heights[number]
    if last is not None:
        found = f"number {number} was removed: block {last} was its last"
        yield CheckResult(
            "member", Verdict.BAD, found, "it can come again only with a new key and bdfl member propose-add"
        )


def _check_data(options: NodeOptions, members: KnownMembers, scenario: Scenario) -> Iterator[CheckResult]:
    """Check data, model and card as the node does at startup."""
    number = members.number
    if options.data is None or members.signer is None or number is None:
        return
    identity = Identity(members.signer, members.genesis, scenario, number, members.admissions)
    with begin_training(identity, options.data, options.flower, options.folder) as training:
        try:
            ready = training.wait_ready(_DATA_S)
        except TrainingFailed as error:
            verdict = Verdict.WARN if training.failure is None else Verdict.BAD
            yield CheckResult("data", verdict, str(error), "the data of the card?" if "card says" in str(error) else "")
            return
    found = f"{options.data}: {ready.samples:,} samples, as the card says; the model has a finite loss on a batch"
    yield CheckResult("data", Verdict.OK, found)


def _check_clock(options: NodeOptions, members: KnownMembers | None, now_s: float) -> CheckResult:
    """Check that the wall clock is not behind the card's issue, the node's last log line or its last start."""
    latest_s, what = 0.0, ""
    if members is not None and members.number is not None:
        certificate = x509.load_der_x509_certificate(members.authorities[members.number])
        latest_s, what = issued_s(certificate, AUTHORITY_DAYS), "you made your card"
    if options.folder is not None:
        with suppress(OSError):
            logged_s = (options.folder / LOG_FILE).stat().st_mtime
            if logged_s > latest_s:
                latest_s, what = logged_s, "the node last wrote its log"
        with suppress(BadFolder):
            run = read_run(options.folder)
            if run is not None and run.started > latest_s:
                latest_s, what = run.started, "the node was last started"
    if now_s < latest_s - SKEW_S:
        behind = f"{latest_s - now_s:,.0f} s before {what}"
        return CheckResult("clock", Verdict.BAD, f"says {_show_time(now_s)}, {behind}", "set it, best by NTP")
    return CheckResult("clock", Verdict.OK, f"says {_show_time(now_s)}")


def _show_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
