"""Help fits 80 columns: a sentence, paragraphs, examples of one line each that parse, and defaults shown as such."""

import re

import click
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from bdfl.cli import app
from tests.test_docs import parse

pytestmark = pytest.mark.usefixtures("elsewhere")
PANELS = ["Options", "Simulate", "Train", "Chain", "Live network", "Studies", "Inspect and export"]


def commands_below(command, path=()):
    for name, below in getattr(command, "commands", {}).items():
        yield (*path, name), below
        yield from commands_below(below, (*path, name))


COMMANDS = dict(commands_below(get_command(app)))


def show_help(*path):
    return CliRunner().invoke(app, [*path, "--help"]).stdout


def test_commands_are_in_panels_by_what_people_do():
    shown = show_help()
    assert re.findall(r"^╭─ ([^─]+) ─", shown, re.MULTILINE) == PANELS
    assert shown.index("│ simulate ") < shown.index("│ run ") < shown.index("│ network ") < shown.index("│ track ")


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_begins_with_a_sentence_and_breaks_no_paragraph(path):
    first, *paragraphs = COMMANDS[path].help.split("\n\n")
    assert re.fullmatch(r"[A-Z][^\n]+\.", first), first
    assert len(first) <= 78, first
    assert first in show_help(*path)
    for paragraph in paragraphs:
        assert "\n" not in paragraph or paragraph.startswith("Example"), paragraph


@pytest.mark.parametrize("path", [path for path in COMMANDS if "commands" not in vars(COMMANDS[path])], ids=" ".join)
def test_every_example_is_one_line_that_parses(path):
    shown = [line.strip() for line in show_help(*path).splitlines()]
    found = re.findall(r"^\[cyan\]  (.*)\[/cyan\]$", COMMANDS[path].help, re.MULTILINE)
    assert found
    for example in found:
        assert example.startswith(f"bdfl {' '.join(path)}")
        assert example in shown, f"{len(example)} characters, at most 76 expected: {example}"
        parse(example)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_defaults_are_shown_as_defaults(path):
    for parameter in COMMANDS[path].params:
        assert "unless given" not in (getattr(parameter, "help", None) or ""), parameter.name
        if isinstance(parameter, click.Option) and isinstance(parameter.show_default, str):
            assert "[default: (" in show_help(*path)
