"""What the documentation shows works: scenarios play, commands parse, quick ones run, tests and links exist."""

import re
import runpy
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from bdfl.cli import app
from bdfl.experiment import simulate
from bdfl.scenario import load_scenario
from bdfl.scheduling.registry import check_scheduler
from bdfl.sweeps.plan import load_sweep
from bdfl.sweeps.points import list_points
from tests.test_paper_map import resolve

ROOT = Path(__file__).parents[1]
GUIDES = ("tutorial.md", "installation.md")  # run whole by tests/test_guides.py, like those of docs/how-to
DOCS = sorted(page for page in (ROOT / "docs").glob("*.md") if page.name not in GUIDES)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
ALL_PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*) ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Only parsed here; their own tests run them.
SLOW = {
    "compare", "bound", "reproduce", "run", "report", "poison", "chain", "keygen", "genesis", "member", "node", "ap",
    "network", "explore", "leaderboard", "track", "export",
    "sweep", "plot",
}  # fmt: skip


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file it is to be saved as (if any) and its text."""

    page: str
    language: str
    file: str
    text: str


BLOCKS = [Block(page.name, *match) for page in PAGES for match in FENCE.findall(page.read_text(encoding="utf-8"))]
COMMANDS = sorted({
    line.partition(" #")[0].strip()
    for block in BLOCKS
    for line in block.text.splitlines()
    if line.startswith("bdfl ")
})  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with every file that the pages show; commands run in it."""
    for block in BLOCKS:
        if block.file:
            (tmp_path / block.file).write_text(block.text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words(command):
    return shlex.split(re.split(r" [<>|] ", command)[0])[1:]


def parse(command):
    """Raises if the command line has an unknown command, option or a missing argument; runs nothing."""
    group, arguments = typer.main.get_command(app), words(command)
    context = group.make_context("bdfl", list(arguments))
    while isinstance(group, TyperGroup) and context._protected_args + context.args:
        name, group, arguments = group.resolve_command(context, context._protected_args + context.args)
        context = group.make_context(name, list(arguments), parent=context)


SWEEPS = sorted(block.file for block in BLOCKS if block.file.endswith("sweep.toml"))


@pytest.mark.parametrize("name", SWEEPS)
def test_every_sweep_shown_has_points(folder, name):
    assert list_points(load_sweep(folder / name))


@pytest.mark.parametrize("name", sorted({b.file for b in BLOCKS if b.file.endswith(".toml")} - set(SWEEPS)))
def test_every_scenario_shown_loads_and_plays(folder, name):
    scenario = load_scenario(folder / name)
    record = simulate(load_scenario(folder / name, [f"rounds={min(scenario.rounds, 3)}"]))
    assert record.round[-1] == min(scenario.rounds, 3)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shown_parses(command):
    parse(command)


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.split()[1] not in SLOW])
def test_every_quick_command_shown_runs(folder, command):
    quickly = ["--json"] if command.split()[1] == "simulate" else []  # without figures
    result = CliRunner().invoke(app, [*words(command.replace("--seeds 20", "--seeds 4")), *quickly])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("command", ["bdfl simulate", "bdfl compare minimal --seed", "bdfl guess", "bdfl bound --x y"])
def test_what_does_not_parse_is_found(command):
    with pytest.raises(Exception, match=r"Missing|requires an argument|No such"):
        parse(command)


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language == "python"], ids=lambda block: block.page
)
def test_every_python_block_shown_runs(block):
    known = runpy.run_path(str(ROOT / "examples" / "own_scheduler.py"))  # what the pages build upon
    exec(compile(block.text.replace("num_rounds=1000", "num_rounds=20"), block.page, "exec"), known)


def test_the_example_scheduler_is_short_and_passes_the_published_check():
    example = ROOT / "examples" / "own_scheduler.py"
    assert len(example.read_text().splitlines()) <= 30
    report = check_scheduler(runpy.run_path(str(example))["longest_queues"], num_rounds=120)
    assert report.ok, str(report)
    assert report.num_feasible > 60


def test_every_test_named_on_a_page_exists():
    for page in ALL_PAGES:
        text = page.read_text(encoding="utf-8")
        for path, name in re.findall(r"(tests/[\w/]+\.py)::(\w+)`", text):
            assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"{page.name}: {path}::{name}"


def test_every_short_test_name_of_the_corrections_exists_and_none_is_left_out():
    text = (ROOT / "docs" / "corrections.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"`([a-z0-9_]{25,})`", text))
    tests = (ROOT / "tests" / "test_corrections.py").read_text(encoding="utf-8")
    assert shown == set(re.findall(r"^def test_(\w+)\(", tests, re.MULTILINE))


def test_every_relative_link_leads_somewhere():
    for page in ALL_PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_index_lists_every_page():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "README.md" or f"]({page.name})" in index, page.name


def test_every_function_of_the_mathematics_exists():
    """The first name of a paragraph is whole; others beside it are of the same module, or whole too."""
    text = (ROOT / "docs" / "mathematics.md").read_text(encoding="utf-8")
    for paragraph in re.split(r"\n\n|```math.*?```", text, flags=re.DOTALL):
        module = ""
        for name in re.findall(r"(?<!\$)`([a-z][\w.]*)`(?!\$)", paragraph):
            if name.startswith("bdfl."):
                resolve(name)
                module = name.rpartition(".")[0]
            elif module and "_" in name:
                resolve(f"{module}.{name}")
