"""A network small enough for tests: digits, a tiny model, as fast as it goes."""

import time
from pathlib import Path

from bdfl.federation.genesis_draft import create_federation
from bdfl.federation.genesis_file import load_live_scenario
from bdfl.federation.keys import create_key
from bdfl.localnet.network import find_ports
from bdfl.node.settings import NodeSettings
from bdfl.scenario.files import find_scenario
from bdfl.storage import write_record

TINY = [
    "clients.min_selected=2", "clients.samples=60", "learning.hidden=[8]", "learning.local_steps=4",
    "live.time_scale=0", "live.grace_s=2", "live.resend_s=0.5", "live.attempt_s=0.8",
]  # fmt: skip
FORMULA_CLIENT = "tests.localnet.formula_client:client_fn"
BY_FORMULA = f"learning.flower={FORMULA_CLIENT}"  # a training process that starts without PyTorch
PATIENCE_S = 300.0  # a busy machine with two cores


def tiny_scenario(num_nodes, *changes):
    return load_live_scenario(find_scenario("live"), [f"clients.count={num_nodes}", *TINY, *changes])


def found_single(folder, *changes):
    """The settings of a node that is a network by itself."""
    folder.mkdir(parents=True, exist_ok=True)
    signer = create_key(folder / "key.pem")
    scenario = tiny_scenario(1, "clients.min_selected=1", *changes)
    write_record(folder / "genesis.bdfl", create_federation(scenario, [signer]))
    [address] = find_ports(1)
    return NodeSettings(
        genesis=folder / "genesis.bdfl", key=folder / "key.pem", folder=folder / "node", listen=(address,)
    )


def wait_for(is_so, what, patience_s=PATIENCE_S):
    """Waits until something is so; fails with what it is otherwise."""
    deadline_s = time.monotonic() + patience_s
    while not (found := is_so()):
        assert time.monotonic() < deadline_s, f"{what}: not within {patience_s:.0f} s"
        time.sleep(0.1)
    return found


def is_alive(pid):
    """Whether a process runs; one that ended and waits for its parent does not."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid):
    """All processes under one."""
    found, pending = [], [pid]
    while pending:
        parent = pending.pop()
        for task in (Path("/proc") / str(parent) / "task").glob("*/children"):
            try:
                children = [int(child) for child in task.read_text().split()]
            except (FileNotFoundError, ProcessLookupError):
                continue
            found += children
            pending += children
    return found
