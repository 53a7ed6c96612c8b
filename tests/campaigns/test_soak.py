"""Many rounds of real processes (`make soak` is the long one): what is seen of them, and that growth is noticed."""

import io

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

import campaigns.soak.measurement as soak_module
from bdfl.report.style import save_picture
from campaigns.soak.__main__ import app
from campaigns.soak.measurement import Moment, Soak, SoakFailed, run_soak
from campaigns.soak.tables import draw_soak, soak_markdown, tabulate_soak
from tests.localnet.small_network import BY_FORMULA, tiny_scenario

MIB = 2**20


def made_up(memory=lambda height: 100 * MIB, files=lambda height: 60.0, threads=lambda height: 40.0, failures=()):
    moments = [
        Moment(
            height=height,
            seconds=0.4 * height,
            memory=memory(height),
            work_memory=250.0 * MIB,
            files=files(height),
            threads=threads(height),
        )
        for height in range(0, 501, 2)
    ]
    return Soak(
        num_nodes=4, num_access_points=1, rounds=500, moments=tuple(moments), disk_bytes=80 * MIB, failures=failures
    )


def test_what_stays_the_same_does_not_grow_though_caches_fill_and_single_moments_differ():
    calm = made_up(memory=lambda height: (100 + min(height, 90)) * MIB + (50 * MIB if height % 50 == 0 else 0))
    assert [growth.per_round for growth in calm.growths] == [0.0, 0.0, 0.0, 0.0]
    assert calm.is_good


@pytest.mark.parametrize(
    ("changed", "name", "per_round"),
    [
        ({"memory": lambda height: 100 * MIB + 10_000 * height}, "memory", 10_000),
        ({"files": lambda height: 60 + height / 50}, "open files", 0.02),
        ({"threads": lambda height: 40 + height / 50}, "threads", 0.02),
    ],
)
def test_what_grows_is_noticed(changed, name, per_round):
    soak = made_up(**changed)
    [bad] = [growth for growth in soak.growths if not growth.is_good]
    assert (bad.name, round(bad.per_round, 6)) == (name, per_round)
    assert not soak.is_good


def test_chains_that_differ_are_not_good():
    assert not made_up(failures=("block 3 differs",)).is_good


def test_the_table_fits_a_terminal_and_the_page_and_figure_tell_all(tmp_path):
    soak = made_up(memory=lambda height: 100 * MIB + 10_000 * height, failures=("block 3 differs",))
    text = io.StringIO()
    Console(file=text, width=80).print(tabulate_soak(soak))
    assert max(map(len, text.getvalue().splitlines())) <= 80
    assert "+9.77 KiB" in text.getvalue()
    page = soak_markdown(soak, "python -m campaigns soak", "a machine")
    assert "block 3 differs" in page
    assert "| threads | 40.0 | 40.0 | +0.0000 | 0.01 |" in page
    paths = save_picture(draw_soak(soak), tmp_path, "soak")
    assert [path.suffix for path in paths] == [".svg", ".png", ".csv"]
    assert len(paths[2].read_text().splitlines()) == 1 + len(soak.moments)


def test_real_processes_are_looked_at_until_the_last_block(tmp_path):
    seen = []
    soak = run_soak(
        tmp_path / "network",
        tiny_scenario(2, "rounds=4", BY_FORMULA),
        num_access_points=0,
        rounds=4,
        on_progress=lambda done, of: seen.append((done, of)),
    )
    assert soak.failures == ()
    assert soak.moments[-1].height == 4
    assert seen[-1] == (4, 4)
    last = soak.moments[-1]
    assert last.memory > 20 * MIB
    assert last.work_memory > 20 * MIB
    assert last.files >= 10
    assert last.threads >= 5


def test_a_network_that_stands_still_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(soak_module, "_STALLED_S", 0.0)
    with pytest.raises(SoakFailed, match="no more"):
        run_soak(tmp_path / "network", tiny_scenario(2, "rounds=4", BY_FORMULA), num_access_points=0, rounds=4)


def test_the_command_writes_its_page_and_says_what_is_not_good(tmp_path, monkeypatch):
    monkeypatch.setattr(soak_module, "run_soak", lambda *args, **options: made_up(failures=("node 1: broken",)))
    done = CliRunner().invoke(app, ["--out", str(tmp_path / "out")])
    assert done.exit_code == 1
    assert "NOT GOOD: node 1: broken" in done.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"README.md", "soak.svg", "soak.png", "soak.csv"}


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_the_command_ends_well_where_nothing_grew(monkeypatch, options):
    monkeypatch.setattr(soak_module, "run_soak", lambda *args, **options: made_up())
    done = CliRunner().invoke(app, [*options])
    assert done.exit_code == 0
    assert "NOT GOOD" not in done.output
    assert not options or msgspec.json.decode(done.stdout)["rounds"] == 500
