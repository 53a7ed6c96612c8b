"""docs/how-to/three-machines.md typed as it stands, each party on a machine of its own, one of them listening."""

import re
import shutil
import subprocess
import time
from pathlib import Path

import msgspec
import pytest

from bdfl.ledger.sqlite_store import ChainStore
from campaigns.installation.machines import HUB, PORT, Machine, open_machines
from campaigns.installation.pages import ROOT, blocks_of

PAGE = ROOT / "docs" / "how-to" / "three-machines.md"
NUM_BLOCKS = 20
PATIENCE_S = 600.0  # a hang is meant; all of it takes a minute on a machine with nothing else to do

pytestmark = pytest.mark.timeout(1500)


def page_lines() -> list[str]:
    return [line for block in blocks_of(PAGE) if block.language == "sh" for line in block.lines]


def lines_for(names: list[str]) -> list[str]:
    """The page's commands for other members than its three."""
    count, cards = len(names), " ".join(f"{name}.card" for name in names)
    dial = dict.fromkeys(names, f"--peer {HUB}:{PORT}") | {names[0]: f"--listen 0.0.0.0:{PORT}"}
    node = "bdfl node --genesis our.genesis --key {0}.key --data dealt --folder node {1}"
    return [
        *(f"bdfl keygen --out {name}.key" for name in names),
        f"bdfl genesis new live --members {count} --rounds {NUM_BLOCKS} --out our.draft",
        *(
            f"bdfl genesis card our.draft --key {name}.key --name {name} --client {number} --out {name}.card"
            for number, name in enumerate(names)
        ),
        f"bdfl genesis add-member our.draft {cards}",
        "bdfl genesis make our.draft --out our.genesis",
        *(
            f"bdfl genesis sign our.genesis --key {name}.key --card {name}.card --out {name}.signature"
            for name in names
        ),
        f"bdfl genesis merge our.genesis {cards.replace('.card', '.signature')}",
        *(node.format(name, dial[name]) for name in names),
        "bdfl chain verify node",
    ]


def is_node(line: str) -> bool:
    return line.startswith("bdfl node --genesis")


def test_the_page_has_the_commands_that_larger_federations_are_walked_with():
    def shape(lines: list[str]) -> list[str]:
        return [re.sub(r"--set rounds=|--rounds ", "--rounds ", line) for line in lines if " show " not in line]

    assert [line for line in shape(page_lines()) if not re.match("bdfl (node (status|doctor)|explore)", line)] == shape(
        lines_for(["north", "east", "south"])
    )


def walk(lines: list[str], names: list[str], tmp_path: Path) -> None:
    """Everything in order: set-up on one desk, files to their owners, nodes at home, until all are finished."""
    desk = Machine("desk", tmp_path / "desk")
    desk.folder.mkdir()
    first_node = next(number for number, line in enumerate(lines) if is_node(line))
    for line in lines[:first_node]:
        desk.run(line)
    with open_machines(names, tmp_path) as machines:
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for machine, line in zip(machines, filter(is_node, lines), strict=True):
                assert f"{machine.name}.key" in line
                for file in ("our.genesis", f"{machine.name}.key"):
                    shutil.copy(desk.folder / file, machine.folder)
                processes.append(machine.start(line, machine.folder / "output.txt"))
            for machine, process in zip(machines, processes, strict=True):
                wait_for_end(machine, process)
            later = [line for line in lines[first_node:] if not is_node(line)]
            for machine in machines:
                for line in later:
                    machine.run(line)
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(60)
        validate_chains(machines)


def wait_for_end(machine: Machine, process: subprocess.Popen[bytes]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while True:
        said = (machine.folder / "output.txt").read_text()
        assert process.poll() is None, said
        asked = subprocess.run(
            machine.words("bdfl node status node --json"), cwd=machine.folder, capture_output=True, timeout=60
        )
        status = msgspec.json.decode(asked.stdout) if asked.stdout else {}
        if (status.get("snapshot") or {}).get("state") == "finished":
            assert asked.returncode == 0
            return
        assert time.monotonic() < end_s, f"{machine.name}: {status}\n{said}"
        time.sleep(1.0)


def validate_chains(machines: list[Machine]) -> None:
    """All have the same blocks, just as many as were agreed on, and none of them empty."""
    chains = []
    for machine in machines:
        with ChainStore.open(machine.folder / "node" / "chain", read_only=True) as store:
            assert store.height == NUM_BLOCKS, machine.name
            chains.append([store.block(height) for height in range(1, NUM_BLOCKS + 1)])
    assert all(chain == chains[0] for chain in chains)
    assert not any(block.body.is_empty for block in chains[0])


def test_three_machines_as_the_page_says(tmp_path):
    walk(page_lines(), ["north", "east", "south"], tmp_path)


@pytest.mark.campaign
@pytest.mark.parametrize("count", [5, 8])
def test_one_listener_is_enough_for_more(tmp_path, count):
    names = [f"site{number}" for number in range(count)]
    walk(lines_for(names), names, tmp_path)
