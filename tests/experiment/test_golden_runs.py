"""Golden digests of the chains and models that the shipped learning scenarios leave.

Training is float32 arithmetic, and `docs/learning.md` promises its bytes for one version of PyTorch on one kind of
processor alone. So chain and model are compared where the file was made (`made_on`), on the same libraries and the
same processor; schedules, queues and modelled costs are integers that do not depend on training: compared everywhere.

Made anew by `python -m tests.experiment.test_golden_runs`, for a change of the format that has its reason.
"""

import hashlib
import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from typer.testing import CliRunner

from bdfl.cli import app
from bdfl.encoding import encode
from bdfl.ledger.sqlite_store import ChainStore

GOLDEN = Path(__file__).parents[1] / "vectors" / "runs.json"
TRAINED = ("genesis", "blocks", "last_block", "final_model")  # these depend on the processor
PLANNED = ("schedules", "queues", "costs")


def describe_machine():
    """Everything that may change the bits of float32 training."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith(("vendor_id", "model name", "flags"))]
    processor = hashlib.sha256("\n".join(dict.fromkeys(names)).encode()).hexdigest()[:16]
    return {
        "machine": platform.machine(),
        "processor": processor if names else platform.processor(),
        "torch": version("torch"),
        "numpy": version("numpy"),
    }


def describe_run(folder):
    """The digests of a run's chain and of its final model."""
    with ChainStore.open(folder / "chain", read_only=True) as chain:
        blocks, genesis = list(chain.blocks()), chain.genesis
    return {
        "genesis": _digest(encode(genesis)),
        "blocks": _digest(*(block.digest for block in blocks)),
        "last_block": blocks[-1].digest.hex(),
        "final_model": _digest((folder / "final.safetensors").read_bytes()),
        "schedules": _digest(*(encode(block.body.schedule) for block in blocks)),
        "queues": _digest(json.dumps([block.body.queue_nano for block in blocks]).encode()),
        "costs": _digest(*(encode(block.body.modelled) for block in blocks)),
    }


def _digest(*parts):
    return hashlib.sha256(b"".join(parts)).hexdigest()


def run(scenario, folder):
    result = CliRunner().invoke(app, ["run", scenario, "--out", str(folder), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["chain"]["is_valid"]
    return describe_run(folder)


@pytest.mark.parametrize(
    "scenario",
    ["minimal", *(pytest.param(name, marks=pytest.mark.slow) for name in ("quickstart", "private-digits"))],
)
def test_a_shipped_scenario_leaves_the_same_chain_and_model_as_ever(scenario, tmp_path, coarse_pictures):
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    compared = (*TRAINED, *PLANNED) if golden["made_on"] == describe_machine() else PLANNED
    found, expected = run(scenario, tmp_path / "run"), golden["runs"][scenario]
    assert {name: found[name] for name in compared} == {name: expected[name] for name in compared}


if __name__ == "__main__":
    with TemporaryDirectory() as made:
        runs = {name: run(name, Path(made) / name) for name in ("minimal", "quickstart", "private-digits")}
    text = json.dumps({"made_on": describe_machine(), "runs": runs}, indent=2) + "\n"
    GOLDEN.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
