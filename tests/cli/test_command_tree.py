"""Commands, options and defaults change only on purpose."""

import difflib

from tests.cli.command_tree import FILE, describe_tree


def test_the_command_tree_is_the_recorded_one():
    recorded, found = FILE.read_text(encoding="utf-8"), describe_tree()
    difference = "\n".join(difflib.unified_diff(recorded.splitlines(), found.splitlines(), FILE.name, "commands"))
    assert found == recorded, f"{difference}\nif this is meant, rewrite it: python -m tests.cli.command_tree"
