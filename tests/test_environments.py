"""With the core alone, installed from the wheel, every command works or ends in one line that says what to install.

`make environments` does the same with each extra alone.
"""

import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from bdfl import errors
from bdfl.errors import MissingExtra, install_command, require
from campaigns.installation.environments import Answer, Environment, list_extras, make_environment, make_samples
from tests.once import make_once
from tests.test_wheel import build

MAX_CORE_MB = 250
patient = pytest.mark.timeout(1800)  # whichever is first installs: minutes on a busy machine


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    pytest.importorskip("hatchling.build", reason="hatchling is not installed; the extra dev brings it")

    def install(out: Path) -> None:
        build(tmp_path_factory.mktemp("source"), out)
        [wheel] = out.glob("*.whl")
        make_environment(out / "environment", wheel)

    return Environment(make_once(tmp_path_factory, "core", install) / "environment")


@pytest.fixture(scope="module")
def answers(core: Environment, tmp_path_factory: pytest.TempPathFactory) -> list[Answer]:
    place = tmp_path_factory.mktemp("samples")
    make_samples(place)
    return core.walk(place)


@patient
def test_every_command_works_with_the_core_alone_or_names_its_extra_in_one_line(answers: list[Answer]) -> None:
    extras = list_extras()
    faults = {answer.call.line: fault for answer in answers if (fault := answer.find_fault(extras)) is not None}
    assert not faults, "\n".join(f"bdfl {line}: {fault}" for line, fault in faults.items())
    worked = {answer.call.line for answer in answers if not answer.missing}
    assert {
        "chain verify run",
        "chain without run 0",
        "bound minimal --rounds 3",
    } <= worked


@patient
def test_without_matplotlib_tables_are_printed_and_a_line_says_that_figures_are_left_out(answers: list[Answer]) -> None:
    [compared] = [answer for answer in answers if answer.call.line.startswith("compare minimal")]
    assert "total s" in compared.stdout
    assert compared.stderr.endswith("no figures: drawing needs Matplotlib: pip install 'bdfl[figures]'\n")


@patient
def test_the_core_fits_in_250_megabytes(core: Environment) -> None:
    assert core.size_mb() <= MAX_CORE_MB


@patient
def test_the_installed_command_ends_in_one_line_too(core: Environment, tmp_path: Path) -> None:
    command = [core.folder / "bin" / "bdfl", "export", tmp_path, "--list"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: exporting tables needs pyarrow: pip install 'bdfl[trace]'\n"


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ('{"dir_info": {"editable": true}, "url": "file:///sources"}', "pip install -c constraints.txt -e '.[live]'"),
        ('{"dir_info": {}, "url": "file:///sources"}', "pip install 'bdfl[live]'"),
        ('{"archive_info": {}, "url": "file:///bdfl.whl"}', "pip install 'bdfl[live]'"),
        (None, "pip install 'bdfl[live]'"),  # from an index
    ],
)
def test_the_advice_fits_how_bdfl_was_installed(
    monkeypatch: pytest.MonkeyPatch, origin: str | None, expected: str
) -> None:
    monkeypatch.setattr(type(distribution("bdfl")), "read_text", lambda self, name: origin)
    assert install_command("live") == expected


def test_all_that_is_missing_is_named_at_once_with_all_extras_that_bring_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("zenoh", "psutil", "torch"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=r"^this needs PyTorch, Zenoh and psutil: pip install .*\[learn,live\]'$"):
        require("this", "json", "torch", "zenoh", "psutil", "numpy")


def test_every_module_of_an_extra_belongs_to_one_that_bdfl_has() -> None:
    assert {extra for _, extra in errors._OPTIONAL.values()} <= list_extras()
