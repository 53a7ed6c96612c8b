"""What the explorer says of chains whole, growing, damaged and tampered with."""

import shutil
import sqlite3
import threading
import time
from pathlib import Path
from queue import SimpleQueue

import msgspec
import pytest

from bdfl.audit.summary import summarise_chain
from bdfl.encoding import decode, encode
from bdfl.explorer import BadRequest, CannotOpen, NotHere, chain_run
from bdfl.explorer.block_source import find_forgeries
from bdfl.explorer.documents import BackEvent, BlockEvent, GoneEvent
from bdfl.explorer.library import open_library
from bdfl.ledger.block import MAX_BLOCK_SIZE, Block, Genesis, chain_id
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.ledger.sqlite_tables import decode_certificate
from tests.browser.folders import CONVICTED, CONVICTION, LATE, MISSED, RunWriter, change_update, tamper
from tests.ledger.lying import FIELD_LIES, write_field_lie


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return RunWriter(tmp_path_factory.mktemp("library") / "run").finish()


def test_the_list_of_blocks_is_that_of_the_summary(run: Path) -> None:
    with ChainStore.open(run / "chain", read_only=True) as chain:
        summary = summarise_chain(chain)
    with open_library([run]) as library:
        listed = library.blocks(0).blocks
        for found, expected in zip(reversed(listed), summary.blocks, strict=True):
            for name in ("height", "digest", "proposer", "trained", "missing", "num_votes", "offenders", "delay_s"):
                value = getattr(expected, name)
                assert getattr(found, name) == (list(value) if isinstance(value, tuple) else value), name
        assert [block.height for block in library.blocks(0, 2, 4).blocks] == [4, 3, 2]


def test_a_block_page_says_what_the_block_says(run: Path) -> None:
    with ChainStore.open(run / "chain", read_only=True) as chain:
        block, certificate, genesis = chain.block(MISSED), chain.certificate(MISSED), chain.genesis
    with open_library([run]) as library:
        page = library.block(0, MISSED)
        raw = msgspec.msgpack.decode(library.raw_block(0, MISSED), type=tuple[bytes, bytes])
        assert decode(library.raw_genesis(0), Genesis, MAX_BLOCK_SIZE) == genesis
        assert library.overview(0).chain == chain_id(genesis).hex()
    assert decode(raw[0], Block, MAX_BLOCK_SIZE) == block
    assert decode_certificate(raw[1]) == certificate
    assert page.digest == block.digest.hex()
    assert page.problem is None
    assert page.work_hash is not None
    assert page.target is not None
    assert page.work_hash <= page.target
    assert [row.client for row in page.updates] == [signed.update.client for signed in block.body.updates]
    assert [row.voter for row in page.votes] == [signed.vote.voter for signed in certificate]
    assert sum(row.weight or 0 for row in page.updates) == pytest.approx(1.0)
    assert any(f"lient {LATE} did not deliver" in line for line in page.sentences)


def test_an_offence_stands_on_the_page_of_its_client(run: Path) -> None:
    with open_library([run]) as library:
        page, other = library.client(0, CONVICTED), library.client(0, 0)
    assert [offence.height for offence in page.offences] == [CONVICTION]
    assert page.offences[0].kind == "two-votes"
    assert other.offences == []
    assert page.num_votes > 0
    assert page.rounds.state is not None
    assert page.rounds.state.count("s") == page.num_contributions


def test_a_tampered_block_is_broken_exactly_there(run: Path, tmp_path: Path) -> None:
    broken = tamper(run, tmp_path / "broken", 5, change_update)
    with open_library([broken]) as library:
        overview = library.overview(0)
        assert [problem.height for problem in overview.problems] == [5]
        assert library.block(0, 5).problem == overview.problems[0].what
        assert library.block(0, 6).problem is None
        assert [flag & 8 for flag in library.rounds(0).flags] == [8 if height == 5 else 0 for height in range(1, 13)]


def test_a_changed_row_is_broken_exactly_there(run: Path, tmp_path: Path) -> None:
    broken = tamper(run, tmp_path / "broken", 7, lambda data: data[:-1] + bytes([data[-1] ^ 1]), with_checksum=False)
    with open_library([broken]) as library:
        assert [problem.height for problem in library.overview(0).problems] == [7]
        assert library.raw_block(0, 7)
        assert str(tmp_path) not in msgspec.json.encode(library.overview(0)).decode()


@pytest.mark.parametrize("what", ["data = x'00'", "data = x''", "certificate = x'c0'"])
def test_a_row_of_nonsense_is_shown_and_the_rest_too(run: Path, tmp_path: Path, what: str) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(run, broken)
    with sqlite3.connect(broken / "chain" / "chain.sqlite") as database:
        database.execute(f"UPDATE blocks SET {what} WHERE height = 4")
    database.close()
    with open_library([broken / "chain"]) as library:
        assert [problem.height for problem in library.overview(0).problems] == [4]
        assert library.overview(0).height == 12
        page = library.block(0, 4)
        assert page.problem is not None
        assert library.block(0, 5).problem is None
        library.rounds(0), library.blocks(0), library.client(0, 1), library.network(0, 6)


def test_a_missing_row_is_shown_and_the_rest_too(run: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(run, broken)
    with sqlite3.connect(broken / "chain" / "chain.sqlite") as database:
        database.execute("DELETE FROM blocks WHERE height = 4")
    database.close()
    with open_library([broken]) as library:
        assert [problem.height for problem in library.overview(0).problems] == [4]
        with pytest.raises(NotHere):
            library.raw_block(0, 4)


def test_a_forged_signature_is_found_where_it_is(run: Path, tmp_path: Path) -> None:
    def forge(data: bytes) -> bytes:
        block = decode(data, Block, MAX_BLOCK_SIZE)
        return encode(msgspec.structs.replace(block, signature=bytes(64)))

    broken = tamper(run, tmp_path / "broken", 8, forge)
    assert list(find_forgeries(broken / "chain", 1, 12)) == [8]
    assert find_forgeries(run / "chain", 1, 12) == {}
    with open_library([broken]) as library:
        until_s = time.monotonic() + 240
        while not library.overview(0).problems and time.monotonic() < until_s:
            time.sleep(0.1)
        assert [problem.height for problem in library.overview(0).problems] == [8]


def test_signatures_whose_check_failed_are_checked_again_and_those_checked_are_not(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    answers: SimpleQueue[dict[int, str] | None] = SimpleQueue()

    def ask(path: Path, first: int, last: int) -> dict[int, str] | None:
        asked.append((first, last))
        return answers.get()

    monkeypatch.setattr(chain_run, "ask_for_forgeries", ask)
    monkeypatch.setattr(chain_run, "_CHECK_EVERY_S", 0.0)
    with open_library([run]) as library:

        def look() -> None:
            until_s = time.monotonic() + 60
            while any(thread.name == "signatures" for thread in threading.enumerate()):
                assert time.monotonic() < until_s
            library._run(0).refresh(at_once=True)

        library._run(0).refresh(at_once=True)
        assert asked == [(1, 12)]  # no second check while one is under way
        answers.put(None)
        look()
        answers.put({8: "forged"})
        look()
        assert asked == [(1, 12)] * 2
        assert [problem.height for problem in library.overview(0).problems] == [8]


def test_growth_is_told_once_and_in_order(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run") as writer:
        writer.write_round()
        with open_library([tmp_path / "run"]) as library:
            assert library.overview(0).height == 1
            assert library.poll(0) == []
            writer.write_round()
            writer.write_round()
            news = [one for one in library.poll(0) if isinstance(one, BlockEvent)]
            assert [one.rounds.round for one in news] == [[2], [3]]
            assert news[-1].overview.height == 3
            assert None not in [one.rounds.accuracy[0] for one in news]
            assert library.poll(0) == []
            assert library.overview(0).is_live


def test_a_chain_that_goes_away_and_comes_back_says_so(run: Path, tmp_path: Path) -> None:
    path, hidden = tmp_path / "run", tmp_path / "hidden"
    shutil.copytree(run, path)
    with open_library([path]) as library:
        library.poll(0)
        path.rename(hidden)
        assert [type(one) for one in library.poll(0)] == [GoneEvent, BlockEvent]
        assert library.overview(0).height == 12  # what is known stays
        assert library.rounds(0).num_rounds == 12
        hidden.rename(path)
        assert BackEvent in [type(one) for one in library.poll(0)]


def test_what_is_not_there_is_not_here(run: Path) -> None:
    with open_library([run]) as library:
        for ask in (
            lambda: library.overview(1),
            lambda: library.overview(-1),
            lambda: library.block(0, 0),
            lambda: library.block(0, 13),
            lambda: library.raw_block(0, 13),
            lambda: library.client(0, 5),
            lambda: library.client(0, -1),
            lambda: library.network(0, 14),
            lambda: library.model(0, 13),
        ):
            with pytest.raises(NotHere):
                ask()
        with pytest.raises(BadRequest):
            library.rounds(0, points=0)
        with pytest.raises(BadRequest):
            library.rounds(0, points=4001)


def test_a_path_that_is_nothing_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file", tmp_path / "none"):
        with pytest.raises(CannotOpen) as caught, open_library([path]):
            pass
        assert "\n" not in str(caught.value)


def test_names_stay_text(tmp_path: Path) -> None:
    from tests.browser.folders import HOSTILE, write_hostile_run

    with open_library([write_hostile_run(tmp_path / "hostile")]) as library:
        assert HOSTILE in library.overview(0).name


def test_expected_and_found_in_verify_json_are_those_of_the_command_line(tmp_path: Path) -> None:
    blocks = [write_field_lie(tmp_path / field, lie) for field, lie in FIELD_LIES.items()]
    with open_library([tmp_path / field for field in FIELD_LIES]) as library:
        for number, (lie, (due, wrong)) in enumerate(zip(FIELD_LIES.values(), blocks, strict=True)):
            while (verdict := library.verify(number)).state == "computing":
                time.sleep(0.02)
            assert verdict.failure is not None
            assert (verdict.failure.height, verdict.failure.rule) == (3, lie.rule)
            assert (verdict.failure.expected, verdict.failure.found) == (lie.read(due), lie.read(wrong))
