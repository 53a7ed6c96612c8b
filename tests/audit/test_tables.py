"""Tables of a chain and of folders: every row says what the block says, and every format gives it back."""

import io
import json
import re
from pathlib import Path

import pytest

from bdfl.ledger.costs import NANO, PICOJOULE
from tests.vectors.make_vectors import make_chain

pyarrow = pytest.importorskip("pyarrow")
from pyarrow import csv, parquet  # noqa: E402

from bdfl.audit.tables import SCHEMAS, BadTable, Format, Table, chain_rows, find_tables, write_table  # noqa: E402  # noqa: E402


@pytest.fixture(scope="module")
def chain():
    """Eight blocks with everything in them: empty ones, a declined update, evidence, changes of members."""
    return make_chain().store


def test_rows_say_what_the_blocks_say(chain):
    blocks = list(chain.blocks())
    rows = list(chain_rows(chain, "blocks"))
    assert [row["digest"] for row in rows[:-1]] == [row["parent"] for row in rows[1:]]
    assert [row["delay_s"] for row in rows] == [block.body.modelled.delay_ns / NANO for block in blocks]
    assert [row["height"] for row in rows if row["is_empty"]] == [4, 5]
    assert [row["offenders"] for row in rows] == [[], [2], *[[]] * 6]
    updates = list(chain_rows(chain, "updates"))
    assert len(updates) == sum(len(block.body.updates) for block in blocks)
    assert [(row["height"], row["client"]) for row in updates if row["is_declined"]] == [(2, 1)]
    counted = [row for row in updates if row["height"] == 1 and row["samples"]]
    samples = sum(row["samples"] for row in counted)
    assert [row["weight"] for row in counted] == [row["samples"] / samples for row in counted]
    assert all(row["weight"] is None for row in updates if row["is_declined"] or not row["samples"])
    schedules = [row for row in chain_rows(chain, "schedules") if row["height"] == 1]
    assert [row["energy_j"] for row in schedules] == [pj / PICOJOULE for pj in blocks[0].body.modelled.energy_pj]
    assert [row["member"] for row in schedules if row["is_selected"]] == list(blocks[0].body.schedule.selected)
    votes = list(chain_rows(chain, "votes"))
    assert [row["voter"] for row in votes if row["height"] == 2] == [0, 1, 3]
    assert [(row["height"], row["offender"], row["kind"]) for row in chain_rows(chain, "evidence")] == [
        (2, 2, "two-votes")
    ]
    assert [row["trained"] for row in chain_rows(chain, "members")] == [5, 4, 2, 3, 1]
    reports = list(chain_rows(chain, "reports"))
    assert len(reports) == sum(len(block.body.reports) for block in blocks)


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_row_fills_exactly_the_columns_of_its_schema(chain, name):
    for row in chain_rows(chain, name):
        assert list(row) == SCHEMAS[name].names


def written(table, format):
    file = io.BytesIO()
    file.close = lambda: None  # Parquet's writer closes what it is given
    num_rows = write_table(table, format, file)
    return num_rows, file.getvalue()


def whole(table):
    return pyarrow.Table.from_batches(table.read(), table.schema)


@pytest.mark.parametrize("name", SCHEMAS)
def test_all_formats_give_the_values_back(chain, tmp_path, name):
    table = find_tables(tmp_path, chain)[name]
    expected = whole(table)
    num_rows, content = written(table, Format.PARQUET)
    assert num_rows == expected.num_rows
    assert parquet.read_table(io.BytesIO(content)).equals(expected)
    rows = json.loads(written(table, Format.JSON)[1])
    assert rows == expected.to_pylist()
    types = {field.name: "string" if pyarrow.types.is_nested(field.type) else field.type for field in table.schema}
    options = csv.ConvertOptions(column_types=types, strings_can_be_null=True, quoted_strings_can_be_null=False)
    found = csv.read_csv(io.BytesIO(written(table, Format.CSV)[1]), convert_options=options).to_pylist()
    for row, other in zip(found, expected.to_pylist(), strict=True):
        lists = {key: json.loads(row[key]) for key, value in other.items() if isinstance(value, list)}
        assert row | lists == other


def test_any_number_survives_the_way_through_text():
    values = [0.1, 1e-300, 2.0**-1074, 1.7976931348623157e308, -0.0, 1 / 3, None]
    texts = ['a "b", c\nd', "", "=1+1", "é", None, "NaN", "null"]
    columns = {"x": pyarrow.array(values), "n": pyarrow.array([2**63 - 1, -(2**63), 0, 1, 2, 3, None]), "t": texts}
    batch = pyarrow.record_batch(columns)
    table = Table("any", batch.schema, lambda: iter([batch]))
    assert json.loads(written(table, Format.JSON)[1]) == batch.to_pylist()
    options = csv.ConvertOptions(
        column_types=batch.schema, strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[""]
    )
    lines = csv.ParseOptions(newlines_in_values=True)
    found = csv.read_csv(io.BytesIO(written(table, Format.CSV)[1]), parse_options=lines, convert_options=options)
    assert found.to_pylist() == batch.to_pylist()


def test_tables_in_parts_are_the_whole_table(chain, tmp_path, monkeypatch):
    expected = {name: whole(table) for name, table in find_tables(tmp_path, chain).items()}
    monkeypatch.setattr("bdfl.audit.tables._ROWS_AT_A_TIME", 3)
    for name, table in find_tables(tmp_path, chain).items():
        assert whole(table).equals(expected[name])
        assert json.loads(written(table, Format.JSON)[1]) == expected[name].to_pylist()


def test_every_parquet_file_of_a_folder_is_a_table(tmp_path):
    points = pyarrow.table({"seed": [1, 2], "delay_s": [0.5, None]})
    parquet.write_table(points, tmp_path / "points.parquet")
    found = find_tables(tmp_path, None)
    assert list(found) == ["points"]
    assert whole(found["points"]).equals(points)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(BadTable, match=r"broken\.parquet: .* a Parquet table expected"):
        find_tables(tmp_path, None)


def test_the_page_names_every_column():
    page = (Path(__file__).parents[2] / "docs" / "tracking.md").read_text(encoding="utf-8")
    for name, schema in SCHEMAS.items():
        columns = ", ".join(f"`{column}`" for column in schema.names)
        assert re.search(rf"^\| `{name}` \| [^|]+ \| {columns} \|$", page, re.MULTILINE), name
