"""Runs that are over: what is read from their folders is what was told while they ran."""

import pytest

from bdfl.experiment import simulate
from bdfl.experiment.run_folder import write_record
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.records import InvalidRecord, encode_run
from bdfl.scenario import Scenario, override_scenario
from bdfl.tracking.tracker import ChainRounds, NothingToTrack, RoundScalars, describe_folder, read_records
from benchmarks.ledger.valid_chain import ChainMaker, example_genesis
from tests.ledger.lying import INITIAL, SIGNERS

parquet = pytest.importorskip("bdfl.records.parquet")

STARVED = 'energy.budget_j={distribution="choice", values=[0.01, 0.4], weights=[0.6, 0.4], each_round=true}'
SCENARIO = override_scenario(Scenario(name="small", rounds=12), [STARVED])


def test_tables_give_the_run_back(tmp_path):
    run = simulate(SCENARIO)
    assert 0 < run.num_infeasible < run.num_rounds
    write_record(SCENARIO, run, tmp_path)
    assert encode_run(parquet.read_run(tmp_path)) == encode_run(run)
    scalars = RoundScalars()
    expected = [(record.round, scalars.of_round(record, None)) for record in run.rounds]
    assert list(read_records(tmp_path)) == expected
    assert describe_folder(tmp_path, None).parameters["energy.budget_j"].startswith("{distribution")


def test_tables_of_something_else_are_refused(tmp_path):
    with pytest.raises(InvalidRecord, match="the tables of a run expected"):
        parquet.read_run(tmp_path)
    import pyarrow

    for name in (parquet.ROUNDS_FILE, parquet.CLIENTS_FILE):
        pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), tmp_path / name)
    with pytest.raises(InvalidRecord, match="not the tables of a run"):
        parquet.read_run(tmp_path)


def test_a_column_of_text_where_numbers_belong_is_refused(tmp_path):
    run = simulate(SCENARIO)
    write_record(SCENARIO, run, tmp_path)
    path = tmp_path / parquet.CLIENTS_FILE
    import pyarrow

    table = pyarrow.parquet.read_table(path)
    place = table.column_names.index("mining_j")
    text = pyarrow.array(["many"] * table.num_rows)
    pyarrow.parquet.write_table(table.set_column(place, "mining_j", text), path)
    with pytest.raises(InvalidRecord, match=r"column mining_j of string, numbers expected"):
        parquet.read_run(tmp_path)


def test_a_chain_is_told_as_it_grows(tmp_path):
    with ChainStore.create(tmp_path / "chain", example_genesis(INITIAL), INITIAL, durable=False) as store:
        maker = ChainMaker(store, SIGNERS)
        maker.grow(2)
        with ChainStore.open(tmp_path / "chain", read_only=True) as chain:
            rounds = ChainRounds(chain, tmp_path)
            first = list(rounds.news())
            assert list(rounds.news()) == []
            maker.grow(1)
            then = list(rounds.news())
            run = describe_folder(tmp_path, chain)
        block = store.block(3)
    assert [round for round, _ in first + then] == [1, 2, 3]
    [(_, values)] = then
    assert values["time/delay_s"] == block.body.modelled.delay_ns / 1e9
    assert values["chain/height"] == 3
    assert values["participation/delivered"] == len(block.body.updates)
    assert values["time/total_s"] == pytest.approx(sum(found["time/delay_s"] for _, found in first + then))
    assert run.is_continued
    assert run.parameters["clients.count"] == len(SIGNERS)


def test_a_folder_of_nothing_is_refused(tmp_path):
    with pytest.raises(NothingToTrack, match=r"no scenario\.toml and no chain in it"):
        describe_folder(tmp_path, None)
