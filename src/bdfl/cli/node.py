"""`bdfl node` and `bdfl ap`: a node and an access point of a live network."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from bdfl.cli.options import AllowOption, JsonOption
from bdfl.cli.terminal import FAILED_EXIT, BadUsage, print_json, print_out, say
from bdfl.errors import require_extra

# `bdfl node`: a node of a live network; options and signals that `bdfl ap` shares.

node_app = typer.Typer(invoke_without_command=True)

GenesisOption = Annotated[Path | None, typer.Option("--genesis", metavar="FILE", help="The signed genesis.")]
KeyOption = Annotated[Path | None, typer.Option("--key", metavar="FILE", help="Your key, from `bdfl keygen`.")]
FolderOption = Annotated[
    Path | None, typer.Option("--folder", metavar="DIR", help="Folder of the node's chain and files.")
]
NodeDataOption = Annotated[
    str,
    typer.Option("--data", metavar="SOURCE", help="Your data (.npz or a folder); dealt: your share of the scenario's."),
]
NodeFlowerOption = Annotated[
    str | None, typer.Option("--flower", metavar="MODULE:NAME", help="Your Flower client, if the genesis asks for one.")
]
ListenOption = Annotated[
    list[str] | None,
    typer.Option(
        "--listen", metavar="HOST:PORT", help="Address to listen on; none behind an access point. Repeatable."
    ),
]
PeerOption = Annotated[
    list[str] | None, typer.Option("--peer", metavar="HOST:PORT", help="Address of a node or access point. Repeatable.")
]
MetricsOption = Annotated[
    str,
    typer.Option(
        "--metrics",
        metavar="[HOST:]PORT|off",
        help="Address of /metrics, /status.json and /chain, on loopback without HOST; port 0: any free one.",
    ),
]
UnsignedOption = Annotated[bool, typer.Option("--unsigned", help="Accept a genesis that not all members signed.")]
AdmissionOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--admission",
        metavar="FILE",
        help="Admission file of a member added after genesis (may be your own). Repeatable.",
    ),
]
QuotaOption = Annotated[
    int | None,
    typer.Option(
        "--quota",
        min=1,
        metavar="MB",
        help="Limit on disk space for models.",
        show_default="enough for the rounds kept",
    ),
]
WhileInputOption = Annotated[bool, typer.Option("--while-input", hidden=True, help="End when standard input does.")]
NodeFolderArgument = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of a node.")]


@node_app.callback()
def node(
    context: typer.Context,
    genesis: GenesisOption = None,
    key: KeyOption = None,
    data: NodeDataOption = "dealt",
    flower: NodeFlowerOption = None,
    folder: FolderOption = None,
    listen: ListenOption = None,
    peer: PeerOption = None,
    metrics: MetricsOption = "0",
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds", min=1, help="Last block, the same for all members.", show_default="the rounds of the genesis"
        ),
    ] = None,
    evaluate: Annotated[bool, typer.Option("--evaluate", help="Evaluate every model on the test data.")] = False,
    record: Annotated[bool, typer.Option(help="Log all events, for `bdfl node replay`.")] = True,
    unsigned: UnsignedOption = False,
    admission: AdmissionOption = None,
    quota: QuotaOption = None,
    allow: AllowOption = None,
    while_input: WhileInputOption = False,
) -> None:
    """Run a node of a live network until stopped, or check on one.

    After the last block the node only serves its peers. Ctrl-C or SIGTERM stops it cleanly, a second one at once. A
    restarted node continues from its folder.

    Examples:
      bdfl node --genesis our.genesis --key my.key --folder node --data my.npz
      bdfl node --genesis our.genesis --key my.key --folder node --peer ap-0:7447
      bdfl node doctor --genesis our.genesis --key my.key --folder node
    """
    if context.invoked_subcommand is not None:
        return
    if genesis is None or key is None or folder is None:
        raise BadUsage("node: --genesis, --key and --folder are needed; bdfl node --help says more")
    require_extra("a live network", "live")
    from bdfl.node.service import NodeFailed, open_node
    from bdfl.node.settings import NodeSettings

    settings = NodeSettings(
        genesis=genesis,
        key=key,
        folder=folder,
        data=_data_source(data),
        flower=flower,
        listen=read_addresses(listen),
        peers=read_addresses(peer),
        metrics=_metrics_address(metrics),
        last_height=rounds,
        evaluates=evaluate,
        records=record,
        is_unsigned_allowed=unsigned,
        allowed=frozenset(allow or ()),
        admissions=tuple(admission or ()),
        quota_bytes=None if quota is None else quota * 2**20,
    )
    try:
        with open_node(settings, echo=sys.stderr) as service, on_signals(service.stop, while_input=while_input):
            service.run()
    except NodeFailed as error:
        say(f"error: {error}", err=True)
        raise typer.Exit(FAILED_EXIT) from None


@node_app.command("doctor")
def doctor(
    genesis: GenesisOption = None,
    key: KeyOption = None,
    data: NodeDataOption = "dealt",
    flower: NodeFlowerOption = None,
    folder: FolderOption = None,
    listen: ListenOption = None,
    peer: PeerOption = None,
    metrics: MetricsOption = "0",
    unsigned: UnsignedOption = False,
    admission: AdmissionOption = None,
    quota: QuotaOption = None,
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a node before its start, or find out why it makes no progress.

    Takes the options of `bdfl node` and prints one line a check. Checks packages, key, genesis, certificates, folder
    and chain, tries the data with the model, binds the ports, connects to the peers, compares clocks and counts the
    votes within reach. Exit code 1 if a check fails.

    Example:
      bdfl node doctor --genesis our.genesis --key my.key --folder node
    """
    from bdfl.node.doctor import examine
    from bdfl.node.reachability import NodeOptions, Verdict

    address = _metrics_address(metrics)
    options = NodeOptions(
        genesis=genesis,
        key=key,
        folder=folder,
        data=_data_source(data),
        flower=flower,
        listen=read_addresses(listen),
        peers=read_addresses(peer),
        metrics=f"{address[0]}:{address[1]}" if address is not None and address[1] else None,
        is_unsigned_allowed=unsigned,
        allowed=frozenset(allow or ()),
        admissions=tuple(admission or ()),
        quota_bytes=None if quota is None else quota * 2**20,
    )
    findings = []
    for finding in examine(options):
        findings.append(finding)
        if not as_json:
            say(str(finding))
    if as_json:
        print_json([{"check": one.check, "verdict": one.verdict, "found": one.found, "advice": one.advice}
                    for one in findings])  # fmt: skip
    if any(finding.verdict is Verdict.BAD for finding in findings):
        raise typer.Exit(FAILED_EXIT)


@node_app.command("status")
def status(folder: NodeFolderArgument, as_json: JsonOption = False) -> None:
    """Show the state of a node and the reason for it.

    Exit code 0: starting, working, catching-up, finished.

    Exit code 1: waiting (no quorum), not-training, misconfigured, stalled, removed, stopped, no answer.

    Example:
      bdfl node status node
    """
    from bdfl.node.status import ServiceState, advise_end, read_status, show_duration

    view = read_status(folder)
    found = view.snapshot
    if as_json:
        print_json(view)
    else:
        since = "" if view.since_s is None else f" for {show_duration(view.since_s)}"
        say(f"{view.state or 'unknown'}{since}: {view.reason}")
    if found is not None and not as_json:
        last = found.last_block
        say(f"node {found.number} ({found.name}), up for {show_duration(found.up_s)}, incarnation {found.incarnation}")
        goal = "" if found.last_height is None else f" of {found.last_height}"
        say(f"block {found.height}{goal}, {found.phase}, attempt {found.attempt}")
        if found.quota_bytes:
            say(f"models {found.model_bytes / 2**20:,.0f} MB of at most {found.quota_bytes / 2**20:,.0f} MB")
        say(f"{len(found.present)} of {found.num_members - found.is_member} others there")
        if found.num_trusted:
            say(f"{found.num_trusted} models taken on trust: bdfl chain verify says which")
        if last is not None:
            age = "before this start" if last.age_s is None else f"{show_duration(last.age_s)} ago"
            say(f"last block by {last.proposer}, {last.num_updates} updates, {age}")
        if found.state is ServiceState.FINISHED:
            say(advise_end(folder))
    if view.state is None or not view.state.is_well:
        raise typer.Exit(FAILED_EXIT)


@node_app.command("replay")
def replay(folder: NodeFolderArgument, as_json: JsonOption = False) -> None:
    """Replay a node's event log and compare the blocks with its chain.

    Needs no key: where the node signed, its recorded signature must match the replayed message. Exit code 1 if
    anything differs.

    Example:
      bdfl node replay runs/network/node-3
    """
    from bdfl.ledger.sqlite_store import ChainStore
    from bdfl.node.settings import CHAIN_FOLDER
    from bdfl.transports.live.event_log import EVENTS_FILE
    from bdfl.transports.live.replay import ReplayDiffers, replay as replay_log

    try:
        with ChainStore.open(folder / CHAIN_FOLDER, read_only=True) as store:
            height, found = store.height, replay_log(folder / EVENTS_FILE, store)
    except ReplayDiffers as error:
        if as_json:
            print_json({"same": False, "why": str(error)})
        say(f"DIFFERS: {error}", err=True)
        raise typer.Exit(FAILED_EXIT) from None
    if as_json:
        print_json({"same": True, **asdict(found)})
        return
    events = sum(one.num_events for one in found.incarnations)
    signatures = sum(one.num_signatures for one in found.incarnations)
    say(f"{found.num_blocks} of {height} blocks decided again, the same byte for byte")
    say(f"{events} events and {signatures} signatures in {len(found.incarnations)} incarnations of node {found.number}")
    if found.not_recorded:
        say(f"not recorded: {len(found.not_recorded)} blocks, such as block {found.not_recorded[0]}")


@node_app.command("calibrate")
def calibrate(
    scenario: Annotated[str, typer.Argument(metavar="[SCENARIO]", help="Scenario to train.")] = "live",
    data: NodeDataOption = "dealt",
    client: Annotated[int, typer.Option("--client", min=0, help="Client whose share of dealt data is trained.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Measure this machine: training cycles, hash rate, uplink and energy source.

    Examples:
      bdfl node calibrate
      bdfl node calibrate quickstart --data mine.npz
    """
    from bdfl.federation.genesis_file import load_live_scenario
    from bdfl.scenario.files import find_scenario
    from bdfl.transports.live.calibration import calibrate as calibrate_machine, report_machine
    from bdfl.transports.live.training_process import TrainingProcess

    chosen = load_live_scenario(find_scenario(scenario))
    with TrainingProcess(chosen, client, _data_source(data)) as training:
        found = calibrate_machine(training, chosen.ledger.work, threads=chosen.learning.threads)
    report = report_machine(found)
    if as_json:
        print_json(asdict(report))
        return
    from bdfl.report.tables import new_table

    columns = ("what", "how much", "how that is known")
    print_out(new_table("This machine", columns, report.rows(), text_columns=3))


@contextmanager
def on_signals(stop: Callable[[], None], *, while_input: bool = False) -> Iterator[None]:
    """Call `stop` in a new thread on Ctrl-C or SIGTERM inside the block; a second signal exits at once.

    `while_input`: also when standard input ends, as it does with the parent process.
    """
    from bdfl.localnet.processes import watch_input

    if while_input:
        watch_input(stop)
    is_asked = threading.Event()

    def hear(number: int, frame: object) -> None:
        if is_asked.is_set():
            os._exit(128 + number)
        is_asked.set()
        threading.Thread(target=stop, name="stop", daemon=True).start()

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _data_source(data: str) -> str:
    return data if data == "dealt" else str(Path(data).absolute())


def read_addresses(given: list[str] | None) -> tuple[str, ...]:
    """Return the addresses; raise `BadAddress` unless each is HOST:PORT."""
    from bdfl.addresses import split_address

    for address in given or ():
        split_address(address)
    return tuple(given or ())


def _metrics_address(given: str) -> tuple[str, int] | None:
    from bdfl.addresses import LOOPBACK, split_address

    if given == "off":
        return None
    return split_address(given if ":" in given else f"{LOOPBACK}:{given}")


# `bdfl ap`: an access point of a live network.


def access_point(
    genesis: Annotated[Path, typer.Option("--genesis", metavar="FILE", help="The genesis file of the network.")],
    key: Annotated[Path, typer.Option("--key", metavar="FILE", help="TLS key, from `bdfl keygen --access-point`.")],
    listen: Annotated[
        list[str], typer.Option("--listen", metavar="HOST:PORT", help="Address to listen on. Repeatable.")
    ],
    certificate: Annotated[
        Path | None,
        typer.Option(
            "--certificate", metavar="FILE", help="TLS certificate.", show_default="certificate.pem beside the key"
        ),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="DIR", help="Folder for the log.", show_default="that of the key")
    ] = None,
    peer: PeerOption = None,
    admission: Annotated[
        list[Path] | None,
        typer.Option("--admission", metavar="FILE", help="Admission of a member added after genesis. Repeatable."),
    ] = None,
    allow: AllowOption = None,
    while_input: WhileInputOption = False,
) -> None:
    """Run an access point that forwards messages between nodes until stopped.

    It can delay and drop messages but not forge them: it has no member's key.

    Access points that name each other with --peer forward along the shortest path, in a ring or any other topology.
    An access point whose certificate the genesis does not list is refused.

    Example:
      bdfl ap --genesis our.genesis --key ap-0/key.pem --listen 0.0.0.0:7447
    """
    require_extra("an access point", "live")
    from bdfl.node.access_point import CERTIFICATE_FILE, AccessPointSettings, open_service

    settings = AccessPointSettings(
        genesis=genesis,
        key=key,
        certificate=certificate or key.parent / CERTIFICATE_FILE,
        folder=folder or key.parent,
        listen=read_addresses(listen),
        peers=read_addresses(peer),
        allowed=frozenset(allow or ()),
        admissions=tuple(admission or ()),
    )
    with open_service(settings, echo=sys.stderr) as service, on_signals(service.stop, while_input=while_input):
        service.run()
