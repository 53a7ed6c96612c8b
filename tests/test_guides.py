"""The tutorial and the how-to pages are run as they stand: the blocks of a page in order, in one empty folder.

A block after `<!-- tests: only parsed, WHY -->` is not run, its commands have to parse; one after
`<!-- tests: FILE runs it -->`, or such, is run there. Everything else runs here; only figures are left empty, which
have tests of their own and take most of the time, and `pip install -e .` tells Python what pip would of the folder.
"""

import importlib
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from bdfl.cli import app
from campaigns.installation.pages import GUIDES, ROOT, blocks_of, type_page
from tests.test_docs import parse

SHOWN = ("text", "console", "")  # blocks that nobody is meant to type


def run_line(line: str) -> None:
    if line == "pip install -e .":
        install_here()
        return
    program, *words = shlex.split(line)
    assert program == "bdfl", f"{line}: not a command of bdfl; say in a note why it is not run"
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, f"{line}\n{result.output}"


def install_here() -> None:
    """What installing the package in this folder leaves beside its modules: its name and its entry points."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    about = Path(f"{project['name']}-{project['version']}.dist-info")
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = {f"[{group}]": names for group, names in project["entry-points"].items()}
    lines = [line for head, names in groups.items() for line in (head, *(f"{one} = {names[one]}" for one in names))]
    (about / "entry_points.txt").write_text("\n".join(lines))
    importlib.invalidate_caches()


def save_nothing(figure: Figure, file: Path | IO[bytes], **settings: object) -> None:
    """An empty picture in place of a figure."""
    write = file.write_bytes if isinstance(file, Path) else file.write
    write(b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"/>')


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder that Python looks into, and forgets the modules of afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(Figure, "savefig", save_nothing)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_everything_on_the_page_runs(page: Path, folder: Path) -> None:
    type_page(page, run_line)


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_what_is_not_run_here_says_why_and_its_commands_exist(page: Path) -> None:
    for block in blocks_of(page):
        assert block.note or block.language in (*SHOWN, "sh", "python", "toml"), block
        if block.note:
            runner = re.fullmatch(r"(tests/\S+\.py) runs (?:it|such)", block.note)
            assert block.note.startswith("only parsed, ") or (runner and (ROOT / runner[1]).is_file()), block.note
        for line in block.lines:
            if block.language == "sh" and line.startswith("bdfl "):
                parse(line)


def test_most_blocks_are_run() -> None:
    blocks = [block for page in GUIDES for block in blocks_of(page) if block.language in ("sh", "python")]
    assert sum(bool(block.note) for block in blocks) <= len(blocks) / 3
