"""Compare three verifiers on many kinds of chains, intact and with flipped bits: verdicts must agree."""

import os
import platform
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Annotated

import typer

sys.path.insert(0, str(Path(__file__).parents[2]))

from campaigns.verifiers.chains import CHAINS, judge_chain
from campaigns.verifiers.flips import MISSING, Tally, find_node


def main(
    flips: Annotated[int, typer.Option("--flips", min=0, help="Bits to change in every chain, one at a time.")] = 1000,
    seed: Annotated[int, typer.Option("--seed", min=0, help="All of them are drawn from it.")] = 0,
    only: Annotated[list[str] | None, typer.Option("--only", help="This chain alone; repeatable.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Processes; one per core.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the table.")] = None,
) -> None:
    """Compare `bdfl chain verify`, the verifier in JavaScript and the independent one in Python.

    Exit code 1 if any two disagree, on validity or on the invalid block.
    """
    if find_node() is None:
        typer.echo(f"error: {MISSING}", err=True)
        raise typer.Exit(2)
    names = list(only or CHAINS)
    unknown = sorted(set(names) - set(CHAINS))
    if unknown:
        typer.echo(f"error: no chain {unknown[0]!r}, expected one of {', '.join(CHAINS)}", err=True)
        raise typer.Exit(2)
    started, commit = time.perf_counter(), _say("git", "rev-parse", "--short", "HEAD")
    found: dict[str, tuple[Tally, float]] = {}
    with ProcessPoolExecutor(workers or len(os.sched_getaffinity(0))) as pool:
        futures = {pool.submit(judge_chain, name, flips, seed): name for name in names}
        for future in as_completed(futures):
            tally, took_s = found[futures[future]] = future.result()
            print(_row(tally, took_s), flush=True)
            for difference in tally.differences[:5]:
                print(f"  {difference}", flush=True)
            if out is not None:  # after each, so that an interrupted campaign keeps its results
                out.mkdir(parents=True, exist_ok=True)
                rows = [_row(*found[name]) for name in names if name in found]
                page = _page(rows, f"--flips {flips} --seed {seed}` at {commit}", time.perf_counter() - started)
                (out / "README.md").write_text(page, encoding="utf-8")
    num_differences = sum(len(tally.differences) for tally, _ in found.values())
    num_flips = sum(tally.num_flips for tally, _ in found.values())
    print(f"{len(found)} chains, {num_flips:,} flips, {num_differences} differences")
    if num_differences:
        raise typer.Exit(1)


def _row(tally: Tally, took_s: float) -> str:
    counts = [
        tally.num_blocks,
        tally.num_flips,
        tally.verdicts["wrong"],
        tally.verdicts["valid"],
        len(tally.differences),
    ]
    return f"| {tally.chain} | {' | '.join(f'{count:,}' for count in counts)} | {took_s:.0f} |"


def _say(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def _page(rows: list[str], how: str, took_s: float) -> str:
    return f"""# Three verifiers, one verdict

`python -m campaigns verifiers {how}, Python {platform.python_version()},
Node.js {_say("node", "--version")}, {platform.machine()}, {os.cpu_count()} cores, {took_s:.0f} s beside other work.

`bdfl chain verify`, `verifiers/node` and `tests/vectors/independent_verifier.py` judge every chain as it is (all say
valid) and with one bit changed: of a block (45 %), of a file (25 %), of a certificate (20 %) or of the genesis (10 %).
One in ten checksums of changed rows is left as it was. They are compared in valid or wrong and in the block that is
wrong, with a changed genesis in valid or wrong alone: bdfl also says of a scheduler that it does not have it.

| chain | blocks | flips | wrong | valid | differences | s |
|---|---|---|---|---|---|---|
{chr(10).join(rows)}

Valid is right where the changed bit is of no consequence for anybody, such as a file of an update that is pruned or not
aggregated.
"""


if __name__ == "__main__":
    typer.run(main)
