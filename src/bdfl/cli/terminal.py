"""Output of commands: one-line errors, progress with time left, JSON, and help with joined paragraphs."""

import json
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from inspect import cleandoc
from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from typer.core import TyperGroup

from bdfl import __version__
from bdfl.errors import BdflError, describe_import_error, one_line, printable

# Exit codes of all commands.
FAILED_EXIT = 1  # something was found wrong: an invalid chain, a node in trouble, a failed point
ERROR_EXIT = 2
INTERRUPTED_EXIT = 130
_PATIENCE_S = 2.0  # before the first line of progress, and between two


def join_paragraphs(text: str) -> str:
    """Return help with one line for each paragraph and each example: Rich would keep the line breaks of the source."""
    lines: list[str] = []
    for line in cleandoc(text).splitlines():
        if line.startswith("  "):
            lines.append(f"[cyan]{line}[/cyan]")
        elif line.startswith("[cyan]"):  # joined before
            lines.append(line)
        elif line and lines and lines[-1]:
            lines[-1] += f" {line}"
        else:
            lines.append(line)
    return "\n".join(lines)


class OneLineErrors(TyperGroup):
    """A group of commands whose expected errors are one line on stderr and exit code 2, with joined help."""

    def __init__(self, **settings: Any) -> None:  # Typer's own, passed on
        super().__init__(**settings)
        below: list[Any] = [self, *self.commands.values()]
        for command in below:
            command.help = join_paragraphs(command.help or "")
            below += getattr(command, "commands", {}).values() if command is not self else ()

    def invoke(self, ctx: Any) -> Any:  # Typer does not export the type of its contexts
        try:
            return super().invoke(ctx)
        except BdflError as error:
            typer.echo(f"error: {one_line(error)}", err=True)
            raise typer.Exit(ERROR_EXIT) from None
        except ModuleNotFoundError as error:  # an extra that no check asked for before its import
            described = describe_import_error(error)
            if described is None:
                raise
            typer.echo(f"error: {described}", err=True)
            raise typer.Exit(ERROR_EXIT) from None


class Screen(Console):
    """A console without markup that escapes control characters in texts."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def say(text: object, *, err: bool = False, nl: bool = True) -> None:
    """Write untrusted text to standard output or stderr, control characters escaped."""
    typer.echo(printable(str(text)), err=err, nl=nl)


class BadUsage(BdflError):
    """Options that are missing or exclude each other."""


class CannotAccess(BdflError):
    """A file that cannot be read or written."""


def read_input(path: str) -> bytes:
    """Return the bytes of a file, or of standard input for `-`."""
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise CannotAccess(f"{path}: {error.strerror}, a readable file expected") from error


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Turn an `OSError` inside the block into `CannotAccess`, an expected error."""
    try:
        yield
    except OSError as error:
        raise CannotAccess(f"{error.filename or folder}: {error.strerror}, a writable folder expected") from error


def print_json(value: object) -> None:
    """Write one JSON document and a newline to standard output."""
    encoded = value if isinstance(value, bytes) else msgspec.json.encode(value)
    text = encoded.decode()
    if not text.isprintable():  # such characters are in strings only, where JSON has escapes
        text = "".join(one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text)
    sys.stdout.write(text + "\n")


def print_out(*parts: RenderableType) -> None:
    """Write tables and text to standard output, a blank line after each."""
    console = Screen()
    for part in parts:
        console.print(part)
        console.print()


def show_result(result: object, tabulate: Callable[[], Iterable[RenderableType]], *, as_json: bool) -> None:
    """Write a result to standard output as JSON, or as the tables and texts that `tabulate` makes of it."""
    if as_json:
        print_json(result)
    else:
        print_out(*tabulate())


def print_files(paths: list[Path]) -> None:
    """Write the path of every written file, one a line."""
    for path in paths:
        say(f"wrote {path}")


@contextmanager
def progress(what: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function of (done, total) that shows progress and time left on stderr.

    A transient bar on a terminal; elsewhere plain lines, none in the first two seconds.
    """
    console = Screen(stderr=True)
    if console.is_terminal:
        with _progress_bar(console, what) as update:
            yield update
    else:
        yield _plain_progress(what, unit)


@contextmanager
def _progress_bar(console: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)

        def update(done: int, total: int) -> None:
            if done < bar.tasks[0].completed:  # the next of several sweeps
                bar.reset(task)
            bar.update(task, completed=done, total=total)

        yield update


def _plain_progress(what: str, unit: str) -> Callable[[int, int], None]:
    started = last_said = time.monotonic()
    last_done = 0

    def update(done: int, total: int) -> None:
        nonlocal started, last_said, last_done
        now = time.monotonic()
        if done < last_done:  # the next of several sweeps
            started = now
        last_done = done
        if now - last_said >= _PATIENCE_S and done < total:
            last_said = now
            left_s = (now - started) / done * (total - done) if done else float("nan")
            say(f"{what}: {done} of {total} {unit}, {left_s:.0f} s left", err=True)

    return update


def describe_machine() -> str:
    """Return versions and platform, for a page of results."""
    return f"bdfl {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
