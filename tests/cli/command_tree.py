"""The command line as text: every command with its options, defaults and arguments, without help prose.

`python -m tests.cli.command_tree` rewrites `command_tree.txt`, which `test_command_tree.py` compares with the commands.
"""

from collections.abc import Iterator
from enum import Enum
from pathlib import Path

import click
from typer.main import get_command

from bdfl.cli import app

FILE = Path(__file__).with_name("command_tree.txt")
_OF_TYPER = ("install_completion", "show_completion")  # they differ from shell to shell


def describe_tree() -> str:
    """Return a paragraph for every command, groups before their commands, in alphabetical order."""
    return "\n".join(_describe(get_command(app), "bdfl"))


def _describe(command: click.Command, path: str) -> Iterator[str]:
    kind = "group" if isinstance(command, click.Group) else "command"
    hidden = " (hidden)" if command.hidden else ""
    yield f"{path}: {kind}{hidden}"
    arguments = [one for one in command.params if isinstance(one, click.Argument)]
    options = [one for one in command.params if isinstance(one, click.Option) and one.name not in _OF_TYPER]
    yield from (f"  {_describe_parameter(one)}" for one in arguments)
    yield from sorted(f"  {_describe_parameter(one)}" for one in options)
    yield ""
    for name, below in sorted(getattr(command, "commands", {}).items()):
        yield from _describe(below, f"{path} {name}")


def _describe_parameter(parameter: click.Parameter) -> str:
    is_option = isinstance(parameter, click.Option)
    names = "/".join([*parameter.opts, *parameter.secondary_opts]) if is_option else "argument"
    facts = [names]
    if is_option and parameter.is_flag:
        facts.append("flag")
    else:
        facts += [parameter.metavar or "no metavar", _describe_type(parameter.type)]
    if parameter.required:
        facts.append("required")
    if parameter.multiple if is_option else parameter.nargs == -1:
        facts.append("repeatable")
    if not parameter.required:
        facts.append(f"default {_describe_default(parameter.default)}")
    if getattr(parameter, "hidden", False):
        facts.append("hidden")
    return ", ".join(facts)


def _describe_type(type: click.ParamType) -> str:
    if isinstance(type, click.Choice):
        return "|".join(str(one.value if isinstance(one, Enum) else one) for one in type.choices)
    bounds = (getattr(type, "min", None), getattr(type, "max", None))
    if bounds == (None, None):
        return type.name
    least, most = ("" if bound is None else f"{bound:g}" for bound in bounds)
    return f"{type.name} {least}..{most}"


def _describe_default(default: object) -> str:
    return str(default.value) if isinstance(default, Enum) else str(default)


if __name__ == "__main__":
    FILE.write_text(describe_tree(), encoding="utf-8")
