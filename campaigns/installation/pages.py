"""Pages walked as a person would type them, each in a new environment installed as the page itself says.

`python -m campaigns.installation.pages WHEEL [PAGE ...]` (`make pages`): minutes, and the registry. Blocks are read as
`tests/test_guides.py` reads them, which runs the same pages in the environment there is.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GUIDES = [
    ROOT / "docs" / "tutorial.md",
    ROOT / "docs" / "installation.md",
    *sorted((ROOT / "docs/how-to").glob("*.md")),
]
BLOCK = re.compile(r"(?:^<!-- tests: (.*?) -->\n)?^```(\w*) ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INSTALL = re.compile(r"pip install -c constraints\.txt -e '\.\[([\w,]+)\]'")
_LIMIT_S = 1800.0


@dataclass(frozen=True)
class Block:
    """A block of a page: why it is not run with the others, if so, its language, the file it is saved as, its text."""

    note: str
    language: str
    file: str
    text: str

    @property
    def lines(self) -> list[str]:
        return [line.partition(" #")[0].strip() for line in self.text.splitlines() if line.strip()]


def blocks_of(page: Path) -> list[Block]:
    return [Block(*match) for match in BLOCK.findall(page.read_text(encoding="utf-8"))]


def extras_of(page: Path) -> str:
    """The extras that the page tells its reader to install; empty: the core is enough."""
    found = _INSTALL.search(page.read_text(encoding="utf-8"))
    return "" if found is None else found[1]


def type_page(page: Path, run_line: Callable[[str], object]) -> None:
    """Everything on the page that is not noted otherwise, in the current folder."""
    known: dict[str, object] = {"__name__": "__main__"}
    for block in blocks_of(page):
        if block.note:
            continue
        if block.file:
            Path(block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            exec(compile(block.text, page.name, "exec"), known)
        elif block.language == "sh":
            for line in block.lines:
                run_line(line)


def run_here(line: str) -> None:
    """A command line with this interpreter's own programs."""
    first, *words = shlex.split(line)
    program = Path(sys.executable).parent / first
    subprocess.run([program, *words], check=True, timeout=_LIMIT_S, stdin=subprocess.DEVNULL)


def main(wheel: Path, names: list[str]) -> int:
    from campaigns.installation.environments import CORE, make_environment

    pages = [page for page in GUIDES if not names or page.stem in names]
    failed = []
    with tempfile.TemporaryDirectory(prefix="bdfl-pages-") as temporary:
        environments: dict[str, str] = {}
        for page in pages:
            extras = extras_of(page)
            if extras not in environments:
                folder = Path(temporary) / f"environment-{len(environments)}"
                environments[extras] = make_environment(folder, wheel, extras or CORE).python
            place, python = Path(temporary) / page.stem, environments[extras]
            place.mkdir()
            started_s = time.perf_counter()
            clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
            command = [python, str(Path(__file__).resolve()), "--type", str(page)]
            done = subprocess.run(command, cwd=place, env=clean, capture_output=True, text=True)
            verdict = "walked" if done.returncode == 0 else "FAILED"
            print(f"{page.stem:20} [{extras}]  {verdict}  {time.perf_counter() - started_s:.0f} s", flush=True)
            if done.returncode:
                failed.append(page)
                print(done.stdout[-2000:] + done.stderr[-4000:], flush=True)
        walk = next(
            (python for extras, python in environments.items() if {"learn", "live"} <= {*extras.split(",")}), None
        )
        if walk is not None:  # the blocks of three machines, which are noted to be run by that test
            test = [sys.executable, "-m", "pytest", "-q", "-k", "as_the_page", "tests/test_three_machines.py"]
            done_test = subprocess.run(test, cwd=ROOT, env={**os.environ, "BDFL_WALKED_BY": walk})
            failed += [ROOT] * (done_test.returncode != 0)
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1] == "--type":
        sys.path.insert(0, "")
        type_page(Path(sys.argv[2]), run_here)
    else:
        sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
