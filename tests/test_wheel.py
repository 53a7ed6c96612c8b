"""The wheel and the source archive hold what they must and nothing else; `make environments` installs the wheel."""

import configparser
import email
import shutil
import tarfile
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from bdfl import __version__
from tests.once import make_once

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TAKEN = ("pyproject.toml", "README.md", "LICENSE", "constraints.txt", "mkdocs.yml", "Makefile", "CHANGELOG.md")
TAKEN += ("CITATION.cff", "CONTRIBUTING.md", "scenarios", "src", "examples", "benchmarks", "docs", "tests", ".ci")
SUFFIXES = {".py", ".typed", ".css", ".js", ".html", ".svg", ".toml", ".md", ".LICENSE"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both."""
    pytest.importorskip("hatchling.build", reason="hatchling is not installed; the extra dev brings it")
    return make_once(tmp_path_factory, "dist", lambda out: build(tmp_path_factory.mktemp("source"), out))


def build(source: Path, out: Path) -> None:
    """Wheel and source archive by the backend itself, without a network, from a copy of the sources."""
    from hatchling import build as backend

    leave_out = shutil.ignore_patterns("__pycache__", "images", "results", "vectors")
    for name in TAKEN:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=leave_out)
        else:
            shutil.copy(path, source / name)
    (source / "src" / "bdfl" / "__pycache__").mkdir()
    (source / "src" / "bdfl" / "__pycache__" / "stray.pyc").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(source)
        backend.build_wheel(str(out))
        backend.build_sdist(str(out))


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    [path] = built.glob("*.whl")
    assert path.name == f"bdfl-{__version__}-py3-none-any.whl"
    return zipfile.ZipFile(path)


def text_of(wheel: zipfile.ZipFile, name: str) -> str:
    return wheel.read(f"bdfl-{__version__}.dist-info/{name}").decode()


def test_the_wheel_has_every_file_of_the_package_and_every_scenario(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    source = ROOT / "src"
    ours = {path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    expected = {str(path.relative_to(source)) for path in ours if path.suffix != ".pyc"}
    expected |= {f"bdfl/{path.relative_to(ROOT)}" for path in (ROOT / "scenarios").rglob("*.toml")}
    assert {name for name in names if ".dist-info/" not in name} == expected
    for must in (
        "bdfl/py.typed",
        "bdfl/report/page.css",
        "bdfl/explorer/static/index.html",
        "bdfl/scenarios/live.toml",
    ):
        assert must in names


def test_the_wheel_has_nothing_stray(wheel: zipfile.ZipFile) -> None:
    inside = [PurePosixPath(name) for name in wheel.namelist() if ".dist-info/" not in name]
    assert {path.parts[0] for path in inside} == {"bdfl"}
    assert {path.suffix for path in inside} <= SUFFIXES
    assert [path for path in inside if "__pycache__" in path.parts or path.name.startswith(".")] == []


def test_the_wheel_says_what_it_is_and_what_it_needs(wheel: zipfile.ZipFile) -> None:
    said = email.message_from_string(text_of(wheel, "METADATA"))
    assert (said["Name"], said["Version"], said["Requires-Python"]) == ("bdfl", __version__, ">=3.11")
    assert said["License-Expression"] == "Apache-2.0"
    assert "Apache License" in text_of(wheel, "licenses/LICENSE")
    assert set(said.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    assert said.get_payload().startswith("# bdfl")
    points = configparser.ConfigParser(delimiters=("=",))
    points.optionxform = str  # type: ignore[assignment, method-assign]
    points.read_string(text_of(wheel, "entry_points.txt"))
    assert dict(points["console_scripts"]) == PROJECT["scripts"]
    for group, given in PROJECT["entry-points"].items():
        assert dict(points[group]) == given


def test_the_source_archive_has_what_it_takes_to_test_and_build_it_again(built: Path) -> None:
    [path] = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    top = {name.partition("/")[0] for name in names}
    assert set(TAKEN) <= top
    assert top - set(TAKEN) <= {"PKG-INFO", ".gitignore"}
    assert {"src/bdfl/py.typed", "scenarios/minimal.toml", "tests/conftest.py", "docs/README.md", ".ci/run"} <= names
    assert [name for name in names if name.endswith(".pyc")] == []


def test_the_citation_is_of_this_version_and_names_the_paper() -> None:
    yaml = pytest.importorskip("yaml")
    said = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (said["cff-version"], said["version"], said["license"]) == ("1.2.0", __version__, PROJECT["license"])
    assert said["message"]
    assert said["authors"] == [{"name": "The bdfl developers"}]
    [paper] = said["references"]
    names = [f"{author['given-names']} {author['family-names']}" for author in paper["authors"]]
    reference = " ".join((ROOT / "README.md").read_text(encoding="utf-8").partition("## Reference")[2].split())
    assert ", ".join(names) in reference
    assert paper["title"] in reference
