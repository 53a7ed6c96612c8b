"""The rounds of a run is that of its records, however it is cut into rows."""

import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bdfl.experiment.network_run import NetworkRun, open_archive, run_genesis, run_toolbox
from bdfl.experiment.simulation import collect_rounds, draw_run
from bdfl.explorer.columns import DELIVERED, Columns, Row, read_series
from bdfl.explorer.documents import ClientColumns, SeriesDocument
from bdfl.explorer.library import open_library
from bdfl.learning.weights import encode_weights
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.records import RunRecord
from bdfl.records.run import summarise_run
from bdfl.scenario import dump_scenario
from benchmarks.ledger.valid_chain import SMALL, example_weights
from tests.browser.folders import RunWriter, example_scenario, write_empty_run

SAMPLED = 'mining.mode="sampled"'


def rows(rounds: SeriesDocument, name: str) -> list[list[float | None]]:
    found: msgspec.Raw = getattr(rounds.clients, name)
    return msgspec.json.decode(found, type=list[list[float | None]])


def replay(path: Path, num_rounds: int) -> RunRecord:
    """The records of a run, by the code that makes its report."""
    scenario = example_scenario()
    draws = draw_run(msgspec.structs.replace(scenario, rounds=scenario.rounds + 2))
    with ChainStore.open(path / "chain", read_only=True) as chain:
        played = NetworkRun(scenario, draws, chain, run_toolbox(scenario, chain.genesis.model.size))
        return collect_rounds(scenario, draws, [played.advance(chain.block(h)) for h in range(1, num_rounds + 1)])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return RunWriter(tmp_path_factory.mktemp("rounds") / "run").finish()


def test_delay_energy_queues_and_participation_are_those_of_the_records(run: Path) -> None:
    with open_library([run]) as library:
        rounds, overview, client = library.rounds(0), library.overview(0), library.client(0, 1)
    record = replay(run, rounds.num_rounds)
    close = {"rtol": 1e-5}
    for name in ("delay_s", "training_s", "upload_s", "mining_s"):
        np.testing.assert_allclose(getattr(rounds, name), getattr(record, name), **close, err_msg=name)
    np.testing.assert_allclose(rounds.time_s, np.cumsum(record.delay_s), rtol=1e-9)
    np.testing.assert_allclose(rounds.objective, record.objective, **close)
    np.testing.assert_allclose(rounds.mean_queue, record.next_queue.mean(axis=1), **close)
    np.testing.assert_allclose(rows(rounds, "queue"), record.next_queue, rtol=1e-3)
    np.testing.assert_array_equal(rows(rounds, "count"), np.cumsum(record.delivered, axis=0))
    spent = record.energy_j / record.energy_budget_j
    found = np.array(rows(rounds, "energy_share"), dtype=np.float64)
    known = np.isfinite(found)  # a convicted member has no conditions on the chain any more
    assert known[:6].all()
    np.testing.assert_allclose(found[known], spent[known], rtol=1e-3, atol=1e-12)
    np.testing.assert_allclose(client.rounds.mining_j, record.mining_j[:, 1], rtol=1e-3)
    summary = summarise_run(record)
    assert overview.summary.total_s == pytest.approx(summary.total_delay_s)
    assert overview.summary.mean_delay_s == pytest.approx(summary.mean_delay_s)
    assert overview.summary.worst_shortfall == pytest.approx(summary.worst_shortfall)
    assert not rounds.is_measured


def test_sampled_mining_takes_as_long_as_it_was_drawn_to(tmp_path: Path) -> None:
    scenario = msgspec.structs.replace(example_scenario(SAMPLED), rounds=4)
    draws = draw_run(scenario)
    initial = encode_weights(example_weights(0), SMALL)
    path = tmp_path / "run"
    path.mkdir()
    (path / "scenario.toml").write_text(dump_scenario(scenario))
    cache = run_toolbox(scenario, len(initial))
    genesis = run_genesis(scenario, draws, SMALL, initial)
    with open_archive(path / "chain", genesis, initial) as archive:
        played = NetworkRun(scenario, draws, archive, cache)
        played.play(
            lambda client, chain, model: encode_weights(example_weights(client + 7 * chain.height), SMALL),
            lambda chain, block, model: None,
        )
    record = collect_rounds(scenario, draws, played.records)
    with open_library([path]) as library:
        until_s = time.monotonic() + 240
        while library.rounds(0, 4).is_measured is False and time.monotonic() < until_s:
            time.sleep(0.1)  # how long the last round took is drawn again by the child process
        rounds, client = library.rounds(0), library.client(0, 2)
    assert rounds.is_measured
    np.testing.assert_allclose(rounds.mining_s, record.mining_s, rtol=1e-5)
    np.testing.assert_allclose(rounds.delay_s, record.delay_s, rtol=1e-5)
    np.testing.assert_allclose(client.rounds.mining_j, record.mining_j[:, 2], rtol=1e-3)


def example_columns(num_rounds: int, num_clients: int = 3) -> Columns:
    columns, rng = Columns(num_clients), np.random.default_rng(1)
    for place in range(num_rounds):
        values = rng.random(num_clients)
        columns.append(
            Row(
                delay_s=float(rng.random()), training_s=0.1, upload_s=0.2, mining_s=0.3, rest_s=0.0, num_updates=1,
                client_training_j=values, client_upload_j=values, client_mining_j=values, client_budget_j=values * 4,
                client_training_s=values, client_upload_s=values, client_queue=values,
                client_count=np.full(num_clients, place + 1), client_state=np.full(num_clients, DELIVERED),
            )
        )  # fmt: skip
        if place % 7 == 0:
            columns["accuracy"][place], columns["loss"][place] = place / num_rounds, 1.0
    return columns


@pytest.mark.parametrize("points", [1, 10, 33, 100, 1000])
def test_fewer_rows_keep_sums_ends_and_extremes(points: int) -> None:
    columns = example_columns(100)
    whole, few = read_series(columns, 1, 100, 1000), read_series(columns, 1, 100, points)
    assert len(few.round) <= points
    assert few.round[-1] == 100
    sizes = np.diff([0, *few.round])
    assert set(sizes[:-1]) <= {few.bucket}
    assert np.dot(sizes, few.delay_s) == pytest.approx(np.sum(whole.delay_s), rel=1e-5)
    assert few.time_s[-1] == whole.time_s[-1]
    assert rows(few, "count")[-1] == rows(whole, "count")[-1]
    assert [value for value in few.accuracy if value == value][-1] == 0.98  # the last one that is known
    if few.bucket > 1:
        assert few.clients.state is None
        assert few.delay_min_s is not None
        assert few.delay_max_s is not None
        assert min(few.delay_min_s) == min(whole.delay_s)  # type: ignore[type-var]
        assert max(few.delay_max_s) == max(whole.delay_s)  # type: ignore[type-var]


def test_a_window_says_what_the_whole_says_of_the_same_rounds() -> None:
    columns = example_columns(50)
    whole, part = read_series(columns, 1, 50, 100), read_series(columns, 11, 20, 100)
    assert part.round == list(range(11, 21))
    assert part.time_s == whole.time_s[10:20]
    assert rows(part, "queue") == rows(whole, "queue")[10:20]
    assert read_series(columns, 60, 70, 100).round == []


def test_a_measured_round_moves_all_that_follow() -> None:
    columns = example_columns(10)
    before = columns["time_s"].copy()
    took_s = float(columns["delay_s"][4])
    columns.measure(4, 1.0, 2.0, 3.0, 4.0)
    np.testing.assert_allclose(columns["time_s"][:4], before[:4])
    np.testing.assert_allclose(columns["time_s"][4:], before[4:] + 10.0 - took_s)


def test_a_client_that_joins_later_was_outside_before() -> None:
    columns = example_columns(3, num_clients=2)
    columns.append(
        Row(**{name: np.ones(3) for name in Row.__dataclass_fields__ if name.startswith("client_")})  # type: ignore[arg-type]
    )
    rounds = read_series(columns, 1, 4, 10)
    assert rounds.clients.state is not None
    assert [row[2] for row in rounds.clients.state[:3]] == ["-"] * 3
    assert isinstance(rounds.clients, ClientColumns)


def test_an_empty_run_has_no_rounds(tmp_path: Path) -> None:
    with open_library([write_empty_run(tmp_path / "empty")]) as library:
        overview, rounds = library.overview(0), library.rounds(0)
        assert overview.height == 0
        assert rounds.round == []
        assert library.poll(0) == []
        assert library.blocks(0).blocks == []
        assert library.client(0, 0).rounds.round == []
        assert library.network(0).round == 1
    assert msgspec.json.decode(msgspec.json.encode(rounds))["clients"]["queue"] == []
