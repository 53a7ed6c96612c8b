"""Chain folders to verify: simulated runs, and hand-made chains of cases that are rare in runs."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from bdfl.encoding import Record
from bdfl.ledger.block import Law
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.ledger.store import rested_on
from bdfl.scenario.schema_learning import QuorumRule, WorkKind
from benchmarks.ledger.valid_chain import ChainMaker
from campaigns.verifiers.flips import NodeVerifier, Tally, find_node, try_flips
from tests.ledger.changing_chain import admission, new_maker, removal
from tests.vectors.make_vectors import ADAM, MOMENTUM, make_chain

_LIMIT_S = 600.0
_BFT = ("clients.count=7", "clients.samples=200", "clients.min_selected=5", 'ledger.quorum="bft"')


def write_chain(path: Path, maker: ChainMaker) -> Path:
    """Write a chain made in memory to a folder."""
    known = maker.store
    initial = known.get_blob(known.genesis.model.initial)
    assert initial is not None
    with ChainStore.create(path, known.genesis, initial, durable=False) as store:
        for height in range(1, known.height + 1):
            block = known.block(height)
            for use in rested_on(block):
                data = known.get_blob(use.blob)
                assert data is not None
                store.put_blob(use.blob, data)
            store.append(block, known.certificate(height))
    return path


def grow_by_hand(path: Path, rule: str = "mean", faulty: int = 0, work: WorkKind = WorkKind.SHA256) -> Path:
    """Make four blocks of seven members, all of which train."""
    name = rule.partition(" ")[0]
    fewest = {"mean": 1, "krum": 2 * faulty + 3, "multi-krum": 2 * faulty + 3}.get(name, 2 * faulty + 1)
    law = Law(QuorumRule.BFT, work, 4, 0, rule, faulty, fewest, 3600 * 10**9)
    maker = new_maker(7, law=law)
    maker.grow(4)
    return write_chain(path, maker)


def change_members(path: Path) -> Path:
    """Make a chain with two admissions and a removal, and blocks after each."""
    maker = new_maker(4)
    for entries in (admission, None, lambda found: removal(found, 0), None, admission, None, None):
        made: list[Record] = [] if entries is None else [entries(maker)]
        updates = [maker.sign_update(client, None) for client in maker.state.schedule.selected]
        reports = [maker.sign_report(client) for client in sorted(maker.state.active)]
        proposer = max(maker.state.active)
        maker.commit(maker.make_block(updates, reports, entries=made, proposer=proposer))
    return write_chain(path, maker)


def _run(*changes: str, scheduler: str | None = None) -> Callable[[Path], Path]:
    """Return a maker that runs the shipped scenario `minimal` with these changes."""

    def make(path: Path) -> Path:
        options = [part for change in changes for part in ("--set", change)]
        options += [] if scheduler is None else ["--scheduler", scheduler]
        command = [str(Path(sys.executable).with_name("bdfl")), "run", "minimal", "--out", str(path), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return path / "chain"

    return make


def _liars(kind: str) -> Callable[[Path], Path]:
    return _run(*_BFT, f'adversaries.kind="{kind}"', "adversaries.members=[1,5]")


def _rule(name: str) -> Callable[[Path], Path]:
    return _run(*_BFT, f'learning.aggregation.rule="{name}"', "learning.aggregation.faulty=1")


CHAINS: Mapping[str, Callable[[Path], Path]] = {
    "golden": lambda path: write_chain(path, make_chain()),
    "golden-momentum": lambda path: write_chain(path, make_chain(MOMENTUM)),
    "members": change_members,
    "argon2id": lambda path: grow_by_hand(path, work=WorkKind.ARGON2ID),
    "median": lambda path: grow_by_hand(path, "median", 2),
    "multi-krum": lambda path: grow_by_hand(path, "multi-krum", 2),
    "krum-adam": lambda path: grow_by_hand(path, f"krum {ADAM}", 2),
    "minimal": _run(),
    "argon2id-run": _run('ledger.work="argon2id"', "rounds=3"),
    "pruned": _run("ledger.keep_blocks=2", "rounds=6"),
    "pruned-adam": _run("ledger.keep_blocks=2", "rounds=6", 'learning.aggregation.server="adam"'),
    "private": _run("privacy.noise_multiplier=1.1"),
    "faults": _run(*_BFT, "faults.loss=0.2", "faults.crashes=4", "faults.partitions=2", "faults.freezes=2"),
    "two-votes": _liars("two-votes"),
    "two-blocks": _liars("two-blocks"),
    "two-updates": _liars("two-updates"),
    "false-work": _liars("false-work"),
    "silent": _liars("silent"),
    "trimmed-mean": _rule("trimmed-mean"),
    "krum": _rule("krum"),
    "minimum-diameter": _rule("minimum-diameter"),
    "exact-power": _run(scheduler="exact-power"),
    "oort": _run("clients.count=6", "clients.samples=200", "clients.min_selected=3", scheduler="oort"),
}
LOGGED = frozenset({"members", "minimal", "krum"})  # verified while the changes are only in the write-ahead log


def judge_chain(name: str, num_flips: int, seed: int) -> tuple[Tally, float]:
    """Make a chain and test it; return its tally and the duration of the flips (s)."""
    node = find_node()
    assert node is not None
    with tempfile.TemporaryDirectory() as folder, NodeVerifier(node) as verifier:
        chain = CHAINS[name](Path(folder) / "made")
        started = time.perf_counter()
        copy = Path(folder) / "copy"
        tally = try_flips(name, chain, copy, verifier, num_flips, seed, is_logged=name in LOGGED)
        return tally, time.perf_counter() - started
