"""Every command of `bdfl` with its help, as Markdown, from the commands themselves."""

import re
from collections.abc import Iterator
from enum import Enum
from inspect import cleandoc

import click
import typer

from bdfl.cli import app

MARKER = "<!-- commands -->"
_MARKUP = re.compile(r"\[/?(?:bold|dim|italic|green|red|yellow|cyan)\]")


def describe_commands() -> str:
    """A section for every command, groups before what is in them."""
    return "\n".join(_describe(typer.main.get_command(app), ("bdfl",)))


def _describe(command: click.Command, path: tuple[str, ...]) -> Iterator[str]:
    if len(path) > 1:
        yield from _section(command, path)
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        if not inner.hidden:
            yield from _describe(inner, (*path, name))


def _section(command: click.Command, path: tuple[str, ...]) -> Iterator[str]:
    yield f"{'#' * min(len(path), 4)} {' '.join(path)}\n"
    yield _as_prose(command.help or "") + "\n"
    rows = [row for parameter in command.params if (row := _describe_parameter(parameter))]
    if rows:
        yield "| option | what it does |\n|---|---|"
        yield from (f"| {name} | {meaning} |" for name, meaning in rows)
        yield ""


def _as_prose(text: str) -> str:
    """Help with its examples as a block."""
    said, *examples = re.split(r"^Examples?:\s*$", _MARKUP.sub("", cleandoc(text)), maxsplit=1, flags=re.MULTILINE)
    shown = [line.strip() for line in "".join(examples).splitlines() if line.strip()]
    block = "\n\n```sh\n" + "\n".join(shown) + "\n```" if shown else ""
    return said.strip() + block


def _describe_parameter(parameter: click.Parameter) -> tuple[str, str] | None:
    if getattr(parameter, "hidden", False) or parameter.name == "help":
        return None
    names = [*parameter.opts, *parameter.secondary_opts]
    name = f"`{parameter.make_metavar(click.Context(click.Command('bdfl')))}`"
    if isinstance(parameter, click.Option):
        takes = "" if parameter.is_flag or not parameter.metavar else f" {parameter.metavar}"
        name = ", ".join(f"`{one}{takes}`" for one in names)
    meaning = f"{getattr(parameter, 'help', None) or ''}{_describe_default(parameter)}"
    return name.replace("|", "\\|"), meaning.replace("|", "\\|")


def _describe_default(parameter: click.Parameter) -> str:
    """Return what the option is without a value, as `--help` shows it."""
    shown = getattr(parameter, "show_default", None)
    if isinstance(shown, str):
        return f" Default: {shown}."
    if parameter.required:
        return " Required."
    default = parameter.default.value if isinstance(parameter.default, Enum) else parameter.default
    return "" if default is None or default is False else f" Default: `{default}`."
