"""The package as installed: light to import, one version, every dependency pinned."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import bdfl

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "matplotlib", "typer", "rich", "pyarrow", "pyscipopt", "zenoh", "socket", "http", "asyncio"}


def modules_after(statement):
    """Top-level modules that a fresh interpreter has loaded after the statement."""
    script = f"import sys\n{statement}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(answer.stdout.split())


def test_importing_the_package_is_light():
    assert modules_after("import bdfl") - modules_after("import importlib") == {"bdfl"}


def test_scheduling_needs_no_pictures_commands_or_learning_library():
    modules = modules_after("import bdfl.scheduling.registry, bdfl.scheduling.drc, bdfl.scheduling.baselines")
    assert not modules & (HEAVY - {"socket", "http", "asyncio"})  # importlib.metadata and numpy may load those


def test_version_is_said_once():
    assert bdfl.__version__ == version("bdfl")


def test_every_direct_dependency_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(item for extra in project["optional-dependencies"].values() for item in extra)]
    names = {re.split(r"[\[>=]", item)[0].strip().lower() for item in asked if not item.startswith("bdfl[")}
    pins = (line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert names <= {pin.partition("==")[0] for pin in pins}
