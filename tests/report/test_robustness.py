"""Rules against attacks, shown: the figure, the tables and the files tell the same numbers."""

from io import StringIO

import pytest
from matplotlib.colors import to_hex
from rich.console import Console

from bdfl.experiment.robustness import CLEAN, Attack, PoisonedRun, Poisoning, RuleChoice, judge_cells, summarise_runs
from bdfl.report.robustness import draw_poisoning, tabulate_poisoning, write_poisoning_markdown
from bdfl.scenario import Behaviour, PartitionMethod

FLIP = Attack(Behaviour.SIGN_FLIP, 3.0)
RULES = [RuleChoice("mean", 0), RuleChoice("median", 4)]
PERCENTS = {(CLEAN, "mean"): 96.0, (CLEAN, "median"): 95.0, (FLIP, "mean"): 12.0, (FLIP, "median"): 94.5}


@pytest.fixture(params=[1, 2])
def found(request):
    runs = [
        PoisonedRun(
            partition=partition, attack=attack, rule=rule, seed=seed,
            accuracy=[(PERCENTS[attack, rule.name] - 20 * (partition is PartitionMethod.DIRICHLET) + seed) / 100],
        )
        for partition in (PartitionMethod.IID, PartitionMethod.DIRICHLET)
        for attack in (CLEAN, FLIP)
        for rule in RULES
        for seed in range(request.param)
    ]  # fmt: skip
    cells = summarise_runs(runs)
    return Poisoning(
        scenario="tiny", rounds=3, num_clients=10, members=[8, 9], dirichlet=0.5, seeds=list(range(request.param)),
        partitions=[PartitionMethod.IID, PartitionMethod.DIRICHLET], attacks=[CLEAN, FLIP], rules=RULES, cells=cells,
        verdicts=judge_cells(cells), runs=runs,
    )  # fmt: skip


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_the_figure_has_a_map_for_each_partition_with_every_accuracy(found):
    even, skewed = draw_poisoning(found).figure.axes[:2]
    offset = (len(found.seeds) - 1) / 2
    assert {f"{percent + offset:.1f}" for percent in PERCENTS.values()} <= set(texts(even))
    assert {f"{percent - 20 + offset:.1f}" for percent in PERCENTS.values()} <= set(texts(skewed))
    assert [label.get_text() for label in even.get_xticklabels()] == ["no\nattack", "sign-flip\ns = 3"]
    assert [label.get_text() for label in even.get_yticklabels()] == ["mean", "median\n(f = 4)"]


def test_what_is_within_two_points_is_framed_and_nothing_else(found):
    even = draw_poisoning(found).figure.axes[0]
    assert [patch.get_linewidth() > 0 for patch in even.patches] == [True, False, True, True]


def test_words_stand_out_from_their_shade(found):
    even = draw_poisoning(found).figure.axes[0]
    by_text = {text.get_text(): to_hex(text.get_color()) for text in even.texts}
    offset = (len(found.seeds) - 1) / 2
    assert by_text[f"{12 + offset:.1f}"] == "#ffffff"
    assert by_text[f"{96 + offset:.1f}"] == "#222222"


def test_a_figure_is_the_same_bytes_every_time(found):
    assert draw_poisoning(found).svg == draw_poisoning(found).svg


def test_sheets_have_a_row_for_every_cell_and_every_run(found):
    cells, runs = draw_poisoning(found).sheets
    assert len(cells.rows) == len(found.cells)
    assert len(runs.rows) == len(found.runs)
    assert all(len(row) == len(sheet.header) for sheet in (cells, runs) for row in sheet.rows)
    assert runs.part == "runs"


def test_tables_fit_a_terminal_and_say_what_is_borne(found):
    console = Console(width=80, file=StringIO())
    for table in tabulate_poisoning(found):
        console.print(table)
    shown = console.file.getvalue()
    assert max(map(len, shown.splitlines())) <= 80
    assert "holds  IID: sign-flip:3 is borne" in shown
    assert "median" in shown


def test_the_page_has_the_command_the_settings_and_both_tables(found):
    page = write_poisoning_markdown(found, ["`bdfl poison`"])
    assert "- `bdfl poison`" in page
    assert "10 clients, 2 of them misbehave (8, 9), 3 rounds" in page
    assert page.count("| mean |") == 2
    assert "| IID | sign-flip:3 | 84.0 | median | 1.5 | borne, mean fails |" in page
    assert "nan" not in page
