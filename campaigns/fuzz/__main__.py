"""The long version of tests/laws/test_bad_input.py: `python -m campaigns fuzz --count 1000000`."""

import os
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Annotated

import typer

from bdfl.encoding import Record
from campaigns.fuzz.decoding import Tally, try_decoding
from campaigns.fuzz.judging import judged_kinds, try_judging
from campaigns.fuzz.records import record_kinds

_MEMORY_LIMIT = 2 * 2**30  # bytes of address space of a worker


def main(
    count: Annotated[int, typer.Option("--count", min=1, help="Mutations of every kind.")] = 1_000_000,
    seed: Annotated[int, typer.Option("--seed", min=0, help="All of them are drawn from it.")] = 0,
    only: Annotated[str | None, typer.Option("--only", help="One kind alone, such as Block.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Processes; one per core.")] = None,
) -> None:
    """Decode mutated encodings of every kind of record, and judge those that somebody judges.

    Exit code 1 if anything is accepted that is not the original, or raises what it should not.
    """
    kinds = [kind for kind in record_kinds() if only in (None, kind.__name__)]
    jobs: list[tuple[Callable[..., Tally], type[Record]]] = [(try_decoding, kind) for kind in kinds]
    jobs += [(try_judging, kind) for kind in judged_kinds() if kind in kinds]
    if not jobs:
        names = ", ".join(kind.__name__ for kind in record_kinds())
        typer.echo(f"error: no kind {only!r}, expected one of {names}", err=True)
        raise typer.Exit(2)
    started = time.perf_counter()
    failed = False
    print(f"{'kind':22}{'tried':>12}{'decoded':>12}{'of these same':>16}{'seconds':>10}", flush=True)
    with ProcessPoolExecutor(workers or len(os.sched_getaffinity(0)), initializer=_limit_memory) as pool:
        futures = {pool.submit(job, subject, count, seed): subject for job, subject in jobs}
        for future in as_completed(futures):
            try:
                tally = future.result()
            except Exception as error:
                failed = True
                print(f"{futures[future].__name__}: {type(error).__name__}: {error}", flush=True)
                continue
            print(
                f"{tally.kind:22}{tally.tried:12,}{tally.decoded:12,}{tally.unchanged:16,}{tally.seconds:10.1f}",
                flush=True,
            )
    print(f"{len(jobs)} tables of {count:,} in {time.perf_counter() - started:.0f} s")
    if failed:
        raise typer.Exit(1)


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_LIMIT, resource.RLIM_INFINITY))


if __name__ == "__main__":
    typer.run(main)
