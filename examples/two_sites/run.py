"""A live network at two sites with a slow, lossy line between them: do blocks go on?

    python examples/two_sites/run.py                two network namespaces with netem: root, and a kernel that has it
    python examples/two_sites/run.py --by relays    an access point, far nodes behind relays of their own: anywhere
    python examples/two_sites/run.py --by relay     an access point at each site, one connection between them: anywhere

100 ms and 2 % loss each way unless told otherwise; --cut 30 also cuts the line for 30 s half-way. Exit code 0: all
nodes have all blocks, the same bytes, and every chain is valid; 1: not so; 77: not possible on this machine.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from namespaces import open_namespaces
from relayed import open_relayed
from sites import NotPossible, Program, Quality, TwoSites

from bdfl.federation.genesis_file import load_live_scenario
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.ledger.store import StoreError
from bdfl.localnet.network import OUTPUT_FILE, create_network
from bdfl.localnet.processes import node_folder
from bdfl.localnet.verdict import verify_network
from bdfl.node.settings import CHAIN_FOLDER
from bdfl.scenario.files import find_scenario

FAILED, NOT_POSSIBLE = 1, 77
_LOOK_EVERY_S = 1.0
_GRACE_S = 20.0
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    """Builds the line, plays the network on it and judges what it leaves."""
    asked = _read_arguments()
    for number in _ENDING:
        signal.signal(number, _unwind)
    try:
        with ExitStack() as resources:
            sites = resources.enter_context(_open_sites(asked))
            folder = asked.out or Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="two-sites-")))
            return _play(asked, sites, folder)
    except NotPossible as error:
        print(f"not possible here: {error}")
        return NOT_POSSIBLE


def _open_sites(asked: argparse.Namespace) -> AbstractContextManager[TwoSites]:
    quality = Quality(asked.delay_ms, asked.loss_percent)
    if asked.by == "netem":
        return open_namespaces(quality)
    return open_relayed(quality, asked.seed, asked.nodes, 1 if asked.by == "relays" else 2)


def _unwind(number: int, frame: object) -> None:
    """Ends this process by way of everything that cleans up, which no second signal disturbs."""
    for other in _ENDING:
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)


def _play(asked: argparse.Namespace, sites: TwoSites, folder: Path) -> int:
    overrides = [f"clients.count={asked.nodes}", f"rounds={asked.blocks}", f"seed={asked.seed}", *asked.set]
    scenario = load_live_scenario(find_scenario(asked.scenario), overrides)
    create_network(folder, scenario, sites.num_access_points, asked.blocks)
    print(
        f"{asked.nodes} nodes at two sites, {asked.delay_ms:g} ms and {asked.loss_percent:g} % loss each way: {folder}"
    )
    with ExitStack() as resources:
        processes: list[subprocess.Popen[bytes]] = []
        resources.callback(_end, processes)
        for program in sites.programs(folder, asked.nodes, asked.blocks):
            processes.append(_start(program))
        reached = _watch(asked, sites, folder, processes)
        print(f"the line: {sites.tell()}")
    verdict = verify_network(folder)
    print(
        f"heights {', '.join(map(str, verdict.heights.values()))}; chains {'are one' if verdict.is_good else 'differ'}"
    )
    for problem in verdict.problems:
        print(problem)
    return 0 if reached and verdict.is_good else FAILED


def _watch(
    asked: argparse.Namespace, sites: TwoSites, folder: Path, processes: Sequence["subprocess.Popen[bytes]"]
) -> bool:
    """Says when all have another block; whether they had all of them in time."""
    begun_s = time.monotonic()
    seen, cut_s = 0, None
    is_to_be_cut = asked.cut > 0
    while time.monotonic() - begun_s < asked.limit:
        now_s = time.monotonic() - begun_s
        height = min(_height(node_folder(folder, number)) for number in range(asked.nodes))
        if height > seen:
            seen = height
            print(f"{now_s:6.0f} s: all nodes have block {height}", flush=True)
        if seen >= asked.blocks:
            return True
        if is_to_be_cut and cut_s is None and seen >= asked.blocks // 2:
            print(f"{now_s:6.0f} s: the line is cut", flush=True)
            sites.cut()
            cut_s = now_s
        elif is_to_be_cut and cut_s is not None and now_s - cut_s >= asked.cut:
            print(f"{now_s:6.0f} s: the line is whole again", flush=True)
            sites.heal()
            is_to_be_cut = False
        if any(process.poll() is not None for process in processes):
            print("a process ended before all was done")
            return False
        time.sleep(_LOOK_EVERY_S)
    print(f"block {asked.blocks} is not everywhere after {asked.limit:.0f} s")
    return False


def _height(folder: Path) -> int:
    """Of a node's newest block, read from its store while it runs; 0 where there is none yet."""
    try:
        with ChainStore.open(folder / CHAIN_FOLDER, read_only=True) as store:
            return store.height
    except StoreError:
        return 0


def _start(program: Program) -> "subprocess.Popen[bytes]":
    """Its standard input ends with this process, and it with that."""
    command = [*program.prefix, sys.executable, "-P", "-m", "bdfl.cli", *program.arguments]
    with (program.folder / OUTPUT_FILE).open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )


def _end(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Asks all to end, waits, and ends those that do not."""
    for process in reversed(processes):
        process.terminate()
    deadline_s = time.monotonic() + _GRACE_S
    for process in processes:
        try:
            process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its session is its own
            process.wait()


def _read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--by", choices=("netem", "relays", "relay"), default="netem")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--delay-ms", type=float, default=100.0, help="one way")
    parser.add_argument("--loss-percent", type=float, default=2.0)
    parser.add_argument("--cut", type=float, default=0.0, metavar="SECONDS", help="cut the line half-way for so long")
    parser.add_argument("--limit", type=float, default=900.0, metavar="SECONDS")
    parser.add_argument("--scenario", default="live")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="new folder to keep; else nothing is kept")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
