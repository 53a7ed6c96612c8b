"""`bdfl[all]` from a wheel in an environment made for it, outside of the sources, and what it installed run for real.

`python -m tests.fresh_install dist/bdfl-*.whl` (`make package-check`); minutes, and pip's index has to be in reach.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
# One module of each extra.
MODULES = (
    "torch", "datasets", "zenoh", "starlette", "pyarrow", "flwr", "flwr_datasets", "ray", "gymnasium", "tensorboard",
    "mlflow", "opacus",
)  # fmt: skip
_LIMIT_S = 3600.0


def main(wheel: Path) -> None:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    with tempfile.TemporaryDirectory(prefix="bdfl-wheel-") as place:
        folder = Path(place)

        def do(what: str, *command: str) -> str:
            started = time.perf_counter()
            done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, timeout=_LIMIT_S)
            if done.returncode:
                raise SystemExit(f"{what}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
            print(f"{time.perf_counter() - started:8.1f} s  {what}", flush=True)
            return done.stdout

        python, bdfl = str(folder / "new" / "bin" / "python"), str(folder / "new" / "bin" / "bdfl")
        do("a new environment", sys.executable, "-m", "venv", "new")
        constraints = str(ROOT / "constraints.txt")
        do(
            "bdfl[all] from the wheel",
            python,
            "-m",
            "pip",
            "install",
            "-q",
            "-c",
            constraints,
            f"bdfl[all] @ {wheel.as_uri()}",
        )
        do("versions that go together", python, "-m", "pip", "check")
        do("every extra", python, "-c", f"import {', '.join(MODULES)}")
        assert "quickstart" in json.loads(do("bdfl scenario list", bdfl, "scenario", "list", "--json"))
        do("bdfl schedulers check exact", bdfl, "schedulers", "check", "exact", "--rounds", "20")
        do("bdfl run quickstart", bdfl, "run", "quickstart", "--rounds", "3", "--out", "run")
        do("bdfl chain verify", bdfl, "chain", "verify", "run")
        do("bdfl explore --export", bdfl, "explore", "run", "--export", "site")
        do(
            "bdfl network up",
            bdfl,
            "network",
            "up",
            "--nodes",
            "4",
            "--blocks",
            "2",
            "--time-scale",
            "0",
            "--out",
            "net",
        )
        assert "<svg" in (folder / "run" / "report.html").read_text(encoding="utf-8")
    print("the wheel works by itself")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
