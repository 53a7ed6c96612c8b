"""Progress: plain lines where there is no terminal, and none for what is over at once; missing packages in one line."""

import pytest
import typer
from typer.testing import CliRunner

from bdfl.cli.terminal import OneLineErrors, progress
from bdfl.errors import install_command


def test_what_is_over_at_once_says_nothing(capsys):
    with progress("working", "parts") as update:
        update(1, 2)
        update(2, 2)
    assert capsys.readouterr().err == ""


def test_long_work_says_how_far_it_is_and_how_long_it_takes(capsys, monkeypatch):
    clock = iter([0.0, 4.0, 5.0, 8.0])
    monkeypatch.setattr("bdfl.cli.terminal.time.monotonic", lambda: next(clock))
    with progress("working", "parts") as update:
        for done in (1, 2, 3):
            update(done, 4)
    assert capsys.readouterr().err.splitlines() == [
        "working: 1 of 4 parts, 12 s left",
        "working: 3 of 4 parts, 3 s left",
    ]


def test_a_terminal_gets_a_bar(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with progress("working", "parts") as update:
        update(1, 2)
    assert "working" in capsys.readouterr().err


@pytest.mark.parametrize(("module", "is_extra"), [("pyarrow.parquet", True), ("nobody_has_this", False)])
def test_an_import_that_nothing_asked_for_before_is_one_line_if_an_extra_brings_it(module, is_extra):
    program = typer.Typer(cls=OneLineErrors)
    program.callback()(lambda: None)

    @program.command()
    def work():
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    result = CliRunner().invoke(program, ["work"])
    if is_extra:
        assert result.exit_code == 2
        assert result.stderr == f"error: this command needs pyarrow: {install_command('trace')}\n"
    else:
        assert isinstance(result.exception, ModuleNotFoundError)
