"""Whatever is written says its format; another one is refused in the same words, with who can read it."""

from pathlib import Path

import pytest

from bdfl import __version__
from bdfl.encoding import BadEncoding, decode, encode
from bdfl.errors import other_format
from bdfl.explorer.record_columns import split_record
from bdfl.ledger.block import FORMAT, MAX_BLOCK_SIZE, Block, Genesis
from bdfl.ledger.sqlite_tables import decode_stored, find_format
from bdfl.scenario import Scenario, ScenarioError, dump_scenario, load_scenario, parse_scenario, scenario_digest
from bdfl.storage import FORMATS, BadSetUpFile, read_record
from benchmarks.ledger.sample_chain import sample_chain

NEWER = f"format 9 found, bdfl {__version__} reads format {FORMAT}: a newer bdfl wrote it and can read it"


def test_the_words_say_what_was_found_what_is_read_and_who_can_read_it() -> None:
    assert other_format(9, FORMAT) == NEWER
    assert other_format(0, 1).endswith("an older bdfl wrote it and can read it")


# Scenarios


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "mine.toml"


def test_a_scenario_may_say_its_format_and_is_the_same_with_and_without(file: Path) -> None:
    file.write_text("rounds = 7\n")
    plain = load_scenario(file)
    file.write_text("format = 1\nrounds = 7\n")
    assert load_scenario(file) == plain
    assert scenario_digest(load_scenario(file)) == scenario_digest(plain)


def test_a_written_scenario_begins_with_its_format() -> None:
    assert dump_scenario(Scenario()).startswith("format = 1\n")


@pytest.mark.parametrize("rest", ["", 'unheard_of = "key"\n[clients]\ncount = "many"\n'])
def test_a_scenario_of_a_later_format_is_refused_by_that_alone(file: Path, rest: str) -> None:
    file.write_text("format = 9\n" + rest)
    with pytest.raises(ScenarioError) as caught:
        load_scenario(file)
    assert str(caught.value) == f"scenario: {other_format(9, 1)}"


@pytest.mark.parametrize("given", ["1", 0, -1, 1.0, True, [1]])
def test_a_format_is_a_whole_number(given: object) -> None:
    with pytest.raises(ScenarioError, match=r"^format: .* given, allowed is 1, or no such key$"):
        parse_scenario({"format": given})  # type: ignore[dict-item]


# Chains


def other_bytes(data: bytes, depth: int) -> bytes:
    """The bytes with another format and one field more than there is now."""
    assert data[depth] == FORMAT
    return bytes([data[0] + 1]) + data[1:depth] + b"\x09" + data[depth + 1 :] + b"\xc0"


def test_a_chain_of_another_format_is_refused_by_its_number_though_nothing_else_fits() -> None:
    chain = sample_chain(1)
    genesis, block = encode(chain.genesis), encode(chain.stages[0].block)
    assert find_format(genesis) == find_format(block) == FORMAT
    assert decode_stored(genesis, Genesis) == chain.genesis
    for data, kind, depth in ((genesis, Genesis, 1), (block, Block, 2)):
        changed = other_bytes(data, depth)
        with pytest.raises(BadEncoding, match="array"):
            decode(changed, kind, MAX_BLOCK_SIZE)
        with pytest.raises(BadEncoding) as caught:
            decode_stored(changed, kind)
        assert str(caught.value) == f"{kind.__name__}: {NEWER}"


@pytest.mark.parametrize("data", [b"", b"\x90", b"\x91\x91\x91\x01", b"\xdc\x00\x01\x01", b"\x91\xc0", b"hello"])
def test_what_is_no_chain_has_no_format(data: bytes) -> None:
    assert find_format(data) is None
    with pytest.raises(BadEncoding):
        decode_stored(data, Genesis)


# Files of a set-up, records


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_of_a_set_up_in_another_format_is_refused_by_its_number(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\x92" + f"\xb0bdfl {kind} 99".encode("latin-1") + b"\x00")
    with pytest.raises(BadSetUpFile) as caught:
        read_record(path, Genesis, kind, 1000)
    assert str(caught.value) == f"{path}: {other_format(99, FORMATS[kind])}"


def test_records_say_their_format_and_another_is_refused(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    from bdfl.audit.lineage import NotOnChain
    from bdfl.experiment import simulate
    from bdfl.records.parquet import write_parquet

    scenario = parse_scenario({"rounds": 2, "clients": {"count": 3, "min_selected": 2}})
    for path in write_parquet(simulate(scenario, prove_gaps=False), None, tmp_path):
        table = parquet.read_table(path)
        assert table.schema.metadata[b"format"] == b"1"
        pyarrow.parquet.write_table(table.replace_schema_metadata({"format": "9"}), path)
    with pytest.raises(NotOnChain) as caught:
        split_record(tmp_path, tmp_path)
    assert str(caught.value) == other_format(9, 1)
