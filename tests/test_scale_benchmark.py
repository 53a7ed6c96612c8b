"""The benchmark of growing federations runs and says what it means; how fast anything is, no test asserts."""

import pytest

from benchmarks.results import tabulate
from benchmarks.scale import speed
from benchmarks.scale.child import Found, crowd_scenario, network_scenario, run_crowd, run_network


def test_a_crowd_and_a_network_are_played():
    crowd = run_crowd(crowd_scenario("drc", 2000, 3))
    network = run_network(network_scenario(5, 2))
    assert min(crowd.round_s, network.round_s, network.set_up_s) > 0.0
    assert crowd.trained >= 2
    assert crowd.block_mb == 0.0 < network.block_mb
    assert network.peak_mb >= crowd.peak_mb > 10.0


def test_scenarios_cut_to_size_keep_their_proportions():
    small, large = (crowd_scenario("exact", size, 2) for size in (10_000, 1_000_000))
    assert large.clients.min_selected == 100 * small.clients.min_selected
    assert large.mining.difficulty == pytest.approx(100 * small.mining.difficulty)
    assert large.scheduler.tradeoff == pytest.approx(100 * small.scheduler.tradeoff)
    assert network_scenario(1000, 2).participation.mean == pytest.approx(0.02)


def test_tables_have_a_row_per_run_and_fit_the_growth(monkeypatch):
    def found(*words):
        size = int(words[-2])
        kind = 1.0 if words[0] == "crowd" else 2.0
        return Found(
            set_up_s=1.0,
            round_s=1.0,
            round_cpu_s=size**kind,
            peak_mb=50.0 * size,
            trained=3.0,
            block_mb=0.1,
            delay_s=1.0,
        )

    monkeypatch.setattr(speed, "_run", found)
    lines: list[str] = []
    crowds, networks, growth = speed.measure_scale(speed.QUICK, lines.append)
    assert len(crowds.cells) + len(networks.cells) == len(lines) == 3 * 2 + 3
    assert [row[1] for row in growth.cells] == pytest.approx([1.0] * 3 + [2.0])
    assert all(tabulate(result).row_count == len(result.cells) for result in (crowds, networks, growth))
