"""Folders to look at: runs whole, empty, under way, tampered with, with hostile names; made in moments without torch.

The blocks keep every rule of the ledger, their conditions are those the scenario draws; only the learning is made up.
"""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from bdfl.encoding import decode, digest, encode
from bdfl.experiment.network_run import member_keys, run_genesis
from bdfl.experiment.run_folder import (
    CHAIN_FOLDER,
    FORMAT,
    JournalHeader,
    create_run_folder,
)
from bdfl.experiment.simulation import draw_run
from bdfl.identity import Meaning
from bdfl.learning.weights import Vector, encode_weights
from bdfl.ledger.block import MAX_BLOCK_SIZE, Block, Genesis, Kind, Seal, TwoVotes, header_seal
from bdfl.ledger.genesis import conditions_of
from bdfl.ledger.proof_of_work import search_nonce
from bdfl.ledger.sqlite_store import DATABASE_FILE, ChainStore
from bdfl.records.learning import LearningRound
from bdfl.scenario import Scenario, load_scenario, scenario_digest
from bdfl.scenario.files import find_scenario
from benchmarks.ledger.valid_chain import SMALL, ChainMaker, example_weights, plan_by_scheduler

NUM_CLIENTS = 5
NUM_ROUNDS = 12
CONVICTED, CONVICTION = 4, 6  # who voted twice, and the block that says so
LATE, MISSED = 2, 3  # whose update is missing, and in which block
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"
_CHANGES = (
    f"clients.count={NUM_CLIENTS}", f"rounds={NUM_ROUNDS}", "clients.min_selected=2", "clients.samples=300",
    "mining.difficulty=3e7", "ledger.cycles_per_hash=1e6", 'data.source="digits"',
    "privacy.noise_multiplier=1.1",
)  # fmt: skip


def example_scenario(*changes: str) -> Scenario:
    """Five clients, twelve rounds, little to mine."""
    return load_scenario(find_scenario("minimal"), [*_CHANGES, *changes])


class RunWriter:
    """A run folder that grows by one round at a time, as `bdfl run` would write it."""

    def __init__(self, path: Path, scenario: Scenario | None = None) -> None:
        self.path = path
        self.scenario = example_scenario() if scenario is None else scenario
        self._open = ExitStack()
        self._folder = self._open.enter_context(create_run_folder(path, self.scenario))  # at work in it: it is live
        self._draws = draw_run(msgspec.structs.replace(self.scenario, rounds=self.scenario.rounds + 2))
        initial = encode_weights(example_weights(0), SMALL)
        genesis = run_genesis(self.scenario, self._draws, SMALL, initial)
        self._store = ChainStore.create(path / CHAIN_FOLDER, genesis, initial, durable=False)
        self._open.callback(self._store.close)
        self._maker = ChainMaker(self._store, member_keys(self.scenario), plan_by_scheduler)
        header = JournalHeader(
            format=FORMAT,
            version="0",
            torch="0",
            scenario_digest=scenario_digest(self.scenario),
            data_digest="0" * 64,
            num_parameters=SMALL.num_parameters,
            initial_model=genesis.model.initial.hex(),
            initial_accuracy=0.1,
            initial_loss=2.3,
        )
        self._folder.write_header(header)

    @property
    def height(self) -> int:
        return self._maker.state.height

    def write_round(self) -> int:
        """The next block and its line in the journal; its height."""
        maker, state = self._maker, self._maker.state
        height = state.height + 1
        selected = [client for client in state.schedule.selected if (client, height) != (LATE, MISSED)]
        updates = [maker.sign_update(client, self._weights(client, height)) for client in selected]
        members = sorted(state.active)
        following = self._draws.states[height]  # of round height + 1
        reports = [maker.sign_report(client, conditions_of(following, client)) for client in members]
        entries = [self._two_votes()] if height == CONVICTION else []
        proposer = members[height % len(members)]
        block = maker.make_block(updates, reports, entries=entries, proposer=proposer)
        maker.commit(block, mining_ms=20)
        model = self._store.get_blob(maker.state.model)
        assert model is not None
        self._folder.append(self._learned(height, selected, maker.state.model), model)
        return height

    def finish(self) -> Path:
        """Writes what is left to write; the folder."""
        while self.height < self.scenario.rounds:
            self.write_round()
        model = self._store.get_blob(self._maker.state.model)
        assert model is not None
        self._folder.finish(model)
        self.close()
        return self.path

    def close(self) -> None:
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _weights(self, client: int, height: int) -> Vector:
        return example_weights(17 * height + client)

    def _two_votes(self) -> TwoVotes:
        first, second = (
            self._maker.sign_vote(CONVICTED, bytes([byte]) * 32, kind=Kind.PREVOTE, attempt=1) for byte in (1, 2)
        )
        return TwoVotes(self._maker.state.place, first, second)

    def _learned(self, height: int, selected: list[int], model: bytes) -> LearningRound:
        accuracy = round(0.9 - 0.6 / height, 3)
        return LearningRound(
            round=height,
            selected=selected,
            outcome=["trained"] * len(selected),
            local_loss=[1.0 / height] * len(selected),
            local_gradient_norm=[1.0] * len(selected),
            epsilon=[None] * len(selected),
            update_norm=2.0 / height,
            accuracy=accuracy,
            loss=round(2.3 / (height + 1), 4),
            recall=[accuracy] * 10,
            gradient_norm=0.5,
            global_loss=1.0 / height,
            smoothness=0.5,
            model=model.hex(),
        )


def write_run(path: Path, *changes: str) -> Path:
    """A finished run."""
    with RunWriter(path, example_scenario(*changes)) as writer:
        return writer.finish()


def write_empty_run(path: Path) -> Path:
    """A run that has a chain and no round yet."""
    with RunWriter(path):
        return path


def write_hostile_run(path: Path) -> Path:
    """A run whose names are markup: the scenario's name and description, and the folder's own."""
    named = path / "<img src=x onerror=alert(3)>"
    scenario = msgspec.structs.replace(example_scenario("rounds=3"), name=HOSTILE, description=HOSTILE)
    with RunWriter(named, scenario) as writer:
        return writer.finish()


# Tampering

Change = Callable[[bytes], bytes]


def tamper(run: Path, path: Path, height: int, change: Change, *, with_checksum: bool = True) -> Path:
    """A copy of a run in which the bytes of one block are changed, its row's checksum with them if told so."""
    shutil.copytree(run, path)
    connection = sqlite3.connect(path / CHAIN_FOLDER / DATABASE_FILE)
    with connection:
        query = "SELECT data, certificate, checksum FROM blocks WHERE height = ?"
        data, certificate, checksum = connection.execute(query, (height,)).fetchone()
        changed = change(data)
        assert changed != data
        checksum = digest(changed + certificate) if with_checksum else checksum
        connection.execute("UPDATE blocks SET data = ?, checksum = ? WHERE height = ?", (changed, checksum, height))
    connection.close()
    return path


def change_update(data: bytes) -> bytes:
    """The block with one bit of the digest of its first update's model turned: all else as it was."""
    block = decode(data, Block, MAX_BLOCK_SIZE)
    first, *others = block.body.updates
    model = bytes([first.update.model[0] ^ 1, *first.update.model[1:]])
    forged = msgspec.structs.replace(first, update=msgspec.structs.replace(first.update, model=model))
    body = msgspec.structs.replace(block.body, updates=(forged, *others))
    return encode(msgspec.structs.replace(block, body=body))


def change_parent(scenario: Scenario, genesis: Genesis) -> Change:
    """The block on another parent, mined and signed anew by its proposer: only the link is wrong."""

    def change(data: bytes) -> bytes:
        block = decode(data, Block, MAX_BLOCK_SIZE)
        header = msgspec.structs.replace(block.header, parent=digest(b"another parent"))
        nonce = search_nonce(genesis.law.work, header_seal(header), header.difficulty)
        assert nonce is not None
        signer = member_keys(scenario)[header.proposer]
        signature = signer.sign(Meaning.BLOCK, header.place, Seal(header, nonce))
        return encode(Block(header, nonce, signature, block.body))

    return change


def read_genesis(run: Path) -> Genesis:
    with ChainStore.open(run / CHAIN_FOLDER, read_only=True) as store:
        return store.genesis
