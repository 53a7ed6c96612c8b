"""`bdfl network`: a network of real processes on this machine, in one command."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdfl.cli.node import on_signals
from bdfl.cli.options import (
    AllowOption,
    FlowerModelOption,
    FlowerOption,
    JsonOption,
    SeedOption,
    SetOption,
    flower_changes,
)
from bdfl.cli.terminal import (
    FAILED_EXIT,
    INTERRUPTED_EXIT,
    BadUsage,
    print_json,
    print_out,
    progress,
    say,
    show_result,
    writing_to,
)
from bdfl.errors import BdflError, require_extra

if TYPE_CHECKING:
    from bdfl.scenario import Scenario

DEFAULT_FOLDER = Path("runs/network")
_LOOK_EVERY_S = 0.5
_DOWN_S = 60.0
_STARTING_S = 180.0
UP_LOG = "up.log"
EXPLORE_LOG = "explore.log"

network_app = typer.Typer(no_args_is_help=True, help="Run a whole network of real processes on this machine.")

NetworkFolderArgument = Annotated[Path, typer.Argument(metavar="[FOLDER]", help="The folder of the network.")]


class NotStopped(BdflError):
    """A network that still runs after SIGTERM and a minute."""


@network_app.command("up")
def up(
    scenario: Annotated[
        str | None,
        typer.Argument(metavar="[SCENARIO]", help="Scenario file or a shipped scenario.", show_default="live"),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, help="Number of nodes.", show_default="the scenario's")
    ] = None,
    aps: Annotated[int, typer.Option("--aps", min=0, help="Access points, in a ring, that the nodes connect to.")] = 0,
    blocks: Annotated[
        int | None, typer.Option("--blocks", min=1, help="Number of blocks.", show_default="the scenario's rounds")
    ] = None,
    time_scale: Annotated[
        float | None,
        typer.Option(
            "--time-scale",
            min=0,
            help="Real seconds per modelled second; 0: as fast as possible.",
            show_default="the scenario's",
        ),
    ] = None,
    flower: FlowerOption = None,
    flower_model: FlowerModelOption = None,
    seed: SeedOption = None,
    changes: SetOption = None,
    out: Annotated[Path | None, typer.Option("--out", help="New folder.", show_default="runs/network")] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="FOLDER", help="Resume the network in this folder.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep serving after the last block, until stopped.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Restart processes that end.")] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Run in the background; `bdfl network status` and `down` find it.")
    ] = False,
    explore: Annotated[
        bool, typer.Option("--explore", help="Also serve the explorer to a browser on this machine.")
    ] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Print lines instead of a live table.")] = False,
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a network of real processes, watch it, and verify its chains.

    Every node is a process with its own key and chain. The network ends after the last block or with Ctrl-C. Then all
    processes end, and all chains are verified and compared byte for byte. Exit code 1 if one is invalid or differs.

    The folder stays; --resume continues it.

    Examples:
      bdfl network up --nodes 8 --aps 2 --explore
      bdfl network up --nodes 4 --blocks 5 --time-scale 0 --out runs/quick
      bdfl network up --nodes 4 --flower mypackage.client:client_fn
      bdfl network up --detach
    """
    others = (scenario, nodes, aps, out, changes, flower, flower_model)
    if resume is not None and (any(others) or time_scale is not None or seed is not None):
        raise BadUsage("--resume: goes on with what its folder says, no scenario or other options of the network")
    if explore:
        require_extra("the explorer", "explore")
    folder = resume or out or DEFAULT_FOLDER
    if resume is None:
        overrides = [*flower_changes(flower, flower_model), *(changes or [])]
        overrides += [] if seed is None else [f"seed={seed}"]
        overrides += [] if time_scale is None else [f"live.time_scale={time_scale}"]
        _create(folder, scenario or "live", nodes, aps, blocks, overrides)
    else:
        require_extra("a live network", "live")
        from bdfl.localnet.network import validate_network

        validate_network(folder, frozenset(allow or ()))
    if detach:
        _detach(folder, blocks=blocks, restart=restart, keep=keep, explore=explore)
        return
    _run(folder, blocks=blocks, restart=restart, keep=keep, explore=explore, plain=plain, as_json=as_json)


@network_app.command("status")
def status(folder: NetworkFolderArgument = DEFAULT_FOLDER, as_json: JsonOption = False) -> None:
    """Show all processes of a network.

    Exit code 1 unless all are up and well, as in `bdfl node status`.

    Example:
      bdfl network status runs/network
    """
    from bdfl.localnet.network import view_network

    view = view_network(folder)
    if as_json:
        print_json(view)
    else:
        from bdfl.cli.progress import list_troubles, summarise_view, tabulate_network

        say(f"{folder}: {'running' if view.is_up else 'not running'}, {summarise_view(view)}")
        print_out(tabulate_network(view))
        for trouble in list_troubles(view):
            say(trouble)
    if not view.is_up or not all(one.state and one.state.is_well for one in (*view.nodes, *view.access_points)):
        raise typer.Exit(FAILED_EXIT)


@network_app.command("down")
def down(folder: NetworkFolderArgument = DEFAULT_FOLDER) -> None:
    """Stop a running network; its folder stays.

    Example:
      bdfl network down runs/network
    """
    from bdfl.localnet.network import wait_until_over
    from bdfl.localnet.processes import read_network
    from bdfl.node.run_file import is_locked

    network = read_network(folder)
    if not is_locked(folder) or network.pid is None:
        say(f"{folder}: not running")
        return
    os.kill(network.pid, signal.SIGTERM)
    if not wait_until_over(folder, _DOWN_S):
        raise NotStopped(f"{folder}: process {network.pid} still runs after {_DOWN_S:.0f} s, its end expected")
    say(f"{folder}: stopped")


def _create(folder: Path, name: str, nodes: int | None, aps: int, blocks: int | None, overrides: list[str]) -> None:
    from bdfl.federation.genesis_file import load_live_scenario
    from bdfl.localnet.network import create_network
    from bdfl.scenario.files import find_scenario

    path = find_scenario(name)
    chosen = load_live_scenario(path, overrides)
    if nodes is not None:
        chosen = load_live_scenario(path, [*_spread(chosen, nodes), *overrides])
    last = blocks or chosen.rounds
    if last > chosen.rounds:
        chosen = load_live_scenario(
            path, [*_spread(chosen, nodes or chosen.clients.count), *overrides, f"rounds={last}"]
        )
    require_extra("a live network", "live", *(() if chosen.learning.flower else ("learn",)))
    say(f"founding {chosen.name}: {chosen.clients.count} members, {aps} access points", err=True)
    with writing_to(folder):
        create_network(folder, chosen, aps, last)


def _spread(scenario: "Scenario", nodes: int) -> list[str]:
    """Return overrides for `nodes` members; if they are more than the scenario's, they share its samples."""
    clients = scenario.clients
    changes = [f"clients.count={nodes}"]
    if nodes > clients.count and isinstance(clients.samples, int | float):
        changes.append(f"clients.samples={max(1, int(clients.samples * clients.count // nodes))}")
    if nodes < clients.min_selected:
        changes.append(f"clients.min_selected={nodes}")
    return changes


def _run(
    folder: Path, *, blocks: int | None, restart: bool, keep: bool, explore: bool, plain: bool, as_json: bool
) -> None:
    from bdfl.cli.progress import show_network
    from bdfl.localnet.network import run_network
    from bdfl.localnet.processes import BadNetwork

    is_stopped = False

    def stop() -> None:
        nonlocal is_stopped
        is_stopped = True

    with on_signals(stop), run_network(folder, restarts=restart, blocks=blocks) as network:
        facts = network.network
        title = f"{facts.scenario}: {facts.num_nodes} nodes, {facts.num_access_points} access points, {folder}"
        started_s = time.monotonic()
        with (
            _explorer(folder, is_wanted=explore) as say_more,
            show_network(title, is_plain=plain, say_more=say_more) as show,
        ):
            is_done = False
            while not is_stopped and not (is_done and not keep):
                view = network.look()
                show(view)
                is_done = view.is_done
                if not restart and network.nodes and not any(child.is_up for child in network.nodes):
                    words = network.nodes[0].last_words()
                    raise BadNetwork(f"{view.folder}: all nodes ended; the first said: {words}")
                time.sleep(_LOOK_EVERY_S)
        took_s = time.monotonic() - started_s
        say("stopping all processes", err=True)
        stubborn = network.stop()
    if stubborn:
        say(f"had to be killed: {', '.join(stubborn)}", err=True)
    if explore:
        say(f"the explorer ended too; bdfl explore {folder} opens it again", err=True)
    _report_verdict(folder, took_s, is_done=is_done, as_json=as_json)
    if is_stopped and not is_done:
        allowed = "".join(f" --allow {name}" for name in facts.functions)
        say(f"stopped; go on: bdfl network up --resume {folder}{allowed}", err=True)
        raise typer.Exit(INTERRUPTED_EXIT)


@contextmanager
def _explorer(folder: Path, *, is_wanted: bool) -> Iterator[Callable[[], str]]:
    """Run an explorer inside the block if wanted; yield a function that returns its last line."""
    from bdfl.localnet.processes import Child, end_all

    if not is_wanted:
        yield lambda: ""
        return
    child = Child("explorer", ["explore", str(folder), "--while-input"], folder / EXPLORE_LOG)

    def say() -> str:
        words = child.last_words()
        return words if child.is_up else f"no explorer: {words}"

    try:
        yield say
    finally:
        end_all([child])


def _report_verdict(folder: Path, took_s: float, *, is_done: bool, as_json: bool) -> None:
    """Verify and compare all chains and print the result; exit code 1 for a failure."""
    from bdfl.localnet.processes import read_network
    from bdfl.localnet.verdict import summarise_network, verify_network
    from bdfl.report.chain_tables import tabulate_summary

    functions = frozenset(read_network(folder).functions)
    with progress("verifying", "chains") as on_progress:
        verdict = verify_network(folder, own_functions=functions, on_progress=on_progress)
    summary = summarise_network(folder, verdict, took_s)
    show_result(summary, lambda: tabulate_summary(summary), as_json=as_json)
    if not as_json:
        say(f"network {folder}")
    for failure in summary.failures:
        say(f"error: {failure}", err=True)
    if summary.failures:
        raise typer.Exit(FAILED_EXIT)


def _detach(folder: Path, *, blocks: int | None, restart: bool, keep: bool, explore: bool) -> None:
    """Start the network in the background and return when it runs."""
    from bdfl.localnet.processes import BadNetwork, read_network
    from bdfl.node.run_file import is_locked

    command = [sys.executable, "-P", "-m", "bdfl.cli", "network", "up", "--resume", str(folder), "--plain"]
    command += [] if blocks is None else ["--blocks", str(blocks)]
    command += [word for name in read_network(folder).functions for word in ("--allow", name)]
    command += ["--restart"] * restart + ["--keep"] * keep + ["--explore"] * explore
    with (folder / UP_LOG).open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    deadline_s = time.monotonic() + _STARTING_S
    while not is_locked(folder):
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise BadNetwork(f"{folder}: did not start, {folder / UP_LOG} says why")
        time.sleep(0.1)
    say(f"{folder}: running in the background; bdfl network status {folder}, bdfl network down {folder}")
