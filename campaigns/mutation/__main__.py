"""Mutate protocol, ledger, aggregation, identity and stores, and check whether a test notices.

python -m campaigns mutation --sample 600 --seed 0 --out results/mutation
"""

import argparse
import contextlib
import importlib
import random
import time
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from campaigns.mutation.loading import module_sources
from campaigns.mutation.operators import Mutant, find_mutants
from campaigns.mutation.tables import score_line, write_table
from campaigns.mutation.trying import Verdict, read_recording, read_verdict, record_tests, try_all

ROOT = Path(__file__).parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
MODULES = (
    "bdfl/protocol/*.py",
    "bdfl/ledger/*.py",
    "bdfl/aggregation.py",
    "bdfl/identity.py",
    "bdfl/transports/interfaces.py",
)
TESTS = (
    "tests/protocol",
    "tests/ledger",
    "tests/transports",
    "tests/vectors",
    "tests/campaigns",
    "tests/audit/test_privacy.py",
    "tests/test_aggregation.py",
    "tests/test_identity.py",
    "tests/test_encoding.py",
    "tests/test_formats.py",
    "tests/test_stated_limits.py",
)
_PREPARED = ("numpy", "scipy.optimize", "scipy.stats", "msgspec", "hypothesis", "typer", "rich.table", "cryptography",
             "cryptography.hazmat.primitives.asymmetric.ed25519", "sqlite3")  # fmt: skip
_LEAST = 3  # mutants per module in a sample
_BUDGET_S = 60.0


def read_equivalent(path: Path = EQUIVALENT) -> dict[tuple[str, str, str], str]:
    """Read the equivalent mutants: reasons by module, line and change."""
    entries = tomllib.loads(path.read_text("utf-8"))["mutant"]
    return {
        (entry["module"], entry["line"], change): entry["reason"] for entry in entries for change in entry["changes"]
    }


def draw_sample(mutants: Sequence[Mutant], size: int, seed: int) -> list[Mutant]:
    """Draw a sample in proportion to the mutants of each module, at least three per module; size 0 means all."""
    if size == 0 or size >= len(mutants):
        return list(mutants)
    rng = random.Random(seed)
    by_module: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        by_module[mutant.module].append(mutant)
    chosen = []
    for found in by_module.values():
        share = max(_LEAST, round(size * len(found) / len(mutants)))
        chosen += rng.sample(found, min(share, len(found)))
    rng.shuffle(chosen)
    return chosen


def read_journal(path: Path, sources: Mapping[str, str]) -> dict[Mutant, Verdict]:
    """Read the last verdict on each mutant that still exists."""
    if not path.exists():
        return {}
    verdicts = [read_verdict(line) for line in path.read_text("utf-8").splitlines()]
    present = {mutant for module, source in sources.items() for mutant in find_mutants(module, source)}
    return {verdict.mutant: verdict for verdict in verdicts if verdict.mutant in present}


def main() -> None:
    options = _read_options()
    sources = module_sources(ROOT, options.modules or MODULES)
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    for name in _PREPARED:  # so that forked processes need not import them
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    recording = out / "recording.json"
    if options.record is not None or not recording.exists():
        record_tests(module_sources(ROOT, MODULES), options.record or TESTS, recording)
    tests = read_recording(recording)
    everything = [mutant for module, source in sources.items() for mutant in find_mutants(module, source)]
    equivalent = read_equivalent()
    sample = draw_sample(everything, options.sample, options.seed)
    journal = out / f"journal-{options.seed}.jsonl"
    known = read_journal(journal, sources)
    todo = [
        mutant
        for mutant in sample
        if mutant not in known or (options.again and not known[mutant].is_caught and mutant.name not in equivalent)
    ]
    print(f"{len(everything)} mutants, {len(sample)} in the sample, {len(todo)} to try with {len(tests)} tests")
    start = time.monotonic()
    try_all(todo, sources, tests, journal, workers=options.workers, budget_s=options.budget)
    known = read_journal(journal, sources)
    verdicts = [known[mutant] for mutant in sample if mutant in known]
    write_table(out / f"table-{options.seed}.md", verdicts, equivalent, len(everything))
    print(score_line(verdicts, equivalent), f"in {time.monotonic() - start:.0f} s")
    for verdict in verdicts:
        if not verdict.is_caught and verdict.mutant.name not in equivalent:
            mutant = verdict.mutant
            print(f"survived  {mutant.module}:{mutant.line}  {mutant.text}\n    {mutant.operator}: {mutant.change}")


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m campaigns mutation", description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", type=int, default=600, help="mutants to try, 0: all (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="they are drawn from it (%(default)s)")
    parser.add_argument("--workers", type=int, default=1, choices=(1, 2), help="at a time (%(default)s)")
    parser.add_argument("--budget", type=float, default=_BUDGET_S, help="seconds of tests for a mutant (%(default)s)")
    parser.add_argument("--modules", nargs="+", help="patterns below src instead of all")
    parser.add_argument("--record", nargs="*", help="record what tests execute again, of all or of these files")
    parser.add_argument("--again", action="store_true", help="try those again that survived")
    parser.add_argument("--out", type=Path, default=Path("results/mutation"), help="folder (%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
