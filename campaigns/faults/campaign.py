"""Many faulty networks and protocol mutants in parallel, with results independent of the number of workers."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bdfl.errors import BdflError
from bdfl.experiment.parallel import Progress, map_parallel
from bdfl.ledger.cache import VerificationCache
from bdfl.scenario.schema_learning import QuorumRule
from campaigns.faults.mutants import MUTANTS, Mutant
from campaigns.faults.plan import draw_plan
from campaigns.faults.shares import is_too_large
from campaigns.faults.trial import Tools, Verdict, judge_plan, try_seed

_SEEDS_PER_TASK = 8
_TEST_S = 600.0
_TESTS_FAILED = 1  # pytest's exit code


class InvalidCampaign(BdflError):
    """A campaign that names an unknown mutant."""


@dataclass(frozen=True)
class Group:
    """Summary of the networks of one quorum rule."""

    quorum: QuorumRule
    networks: int
    nodes: int
    liars: int
    crashes: int
    changes: int  # of membership
    blocks: int  # of the longest honest chains
    recovery_median_s: float  # virtual: from the end of the faults until all honest nodes are three rounds further
    recovery_worst_s: float
    worst_seed: int
    breaches: int


@dataclass(frozen=True)
class Campaign:
    """Results of many seeds."""

    first: int
    num_seeds: int
    groups: tuple[Group, ...]
    selfish_won: int  # blocks won by selfish members after the faults stopped, in all networks
    selfish_winnable: int
    selfish_expected: float  # their share of the hashing
    failures: tuple[Verdict, ...]

    @property
    def is_share_too_large(self) -> bool:
        """True if selfish members won more than chance explains: single networks are too short to tell."""
        return is_too_large(self.selfish_won, self.selfish_winnable, self.selfish_expected)

    @property
    def is_good(self) -> bool:
        return not self.failures and not self.is_share_too_large


@dataclass(frozen=True)
class MutantResult:
    """Detection of a mutant: by which laws, at which seed, after how many."""

    name: str
    change: str
    laws: tuple[str, ...]  # none: not noticed
    what: str  # the first breach
    seed: int | None
    num_seeds: int  # tried, including the one that noticed


def run_campaign(
    num_seeds: int,
    *,
    first: int = 0,
    quorum: QuorumRule | None = None,
    most_liars: bool = False,
    workers: int | None = None,
    on_progress: Progress | None = None,
) -> Campaign:
    """Run and judge the networks of consecutive seeds; without a quorum rule the rules alternate."""
    end = first + num_seeds
    starts = range(first, end, _SEEDS_PER_TASK)
    tasks = [(start, min(start + _SEEDS_PER_TASK, end), quorum, most_liars) for start in starts]

    def on_tasks(done: int, total: int) -> None:
        if on_progress is not None:
            on_progress(min(done * _SEEDS_PER_TASK, num_seeds), num_seeds)

    batches = map_parallel(_try_seeds, tasks, workers=workers, on_progress=on_tasks)
    verdicts = [verdict for batch in batches for verdict in batch]
    groups = [_summarise([one for one in verdicts if one.quorum is rule]) for rule in QuorumRule]
    return Campaign(
        first=first,
        num_seeds=num_seeds,
        groups=tuple(group for group in groups if group is not None),
        selfish_won=sum(verdict.won for verdict in verdicts),
        selfish_winnable=sum(verdict.winnable for verdict in verdicts),
        selfish_expected=sum(verdict.expected for verdict in verdicts),
        failures=tuple(verdict for verdict in verdicts if not verdict.is_good),
    )


def _try_seeds(task: tuple[int, int, QuorumRule | None, bool]) -> list[Verdict]:
    start, end, quorum, most_liars = task
    tools = Tools()
    return [try_seed(seed, quorum, most_liars=most_liars, tools=tools) for seed in range(start, end)]


def _summarise(verdicts: Sequence[Verdict]) -> Group | None:
    if not verdicts:
        return None
    worst = max(verdicts, key=lambda verdict: verdict.recovery_s)
    return Group(
        quorum=worst.quorum,
        networks=len(verdicts),
        nodes=sum(verdict.num_nodes for verdict in verdicts),
        liars=sum(verdict.num_liars for verdict in verdicts),
        crashes=sum(verdict.num_crashes for verdict in verdicts),
        changes=sum(verdict.num_changes for verdict in verdicts),
        blocks=sum(verdict.height for verdict in verdicts),
        recovery_median_s=median(verdict.recovery_s for verdict in verdicts),
        recovery_worst_s=worst.recovery_s,
        worst_seed=worst.seed,
        breaches=sum(not verdict.is_good for verdict in verdicts),
    )


def hunt_mutants(
    names: Sequence[str] | None = None,
    *,
    num_seeds: int,
    first: int = 0,
    workers: int | None = None,
    on_progress: Progress | None = None,
) -> list[MutantResult]:
    """Run every mutant, or those named, on consecutive seeds until a law is broken."""
    known = [mutant.name for mutant in MUTANTS]
    for name in names or ():
        if name not in known:
            raise InvalidCampaign(f"no mutant {name!r}; there are: {', '.join(known)}")
    tasks = [(name, first, num_seeds) for name in known if names is None or name in names]
    return map_parallel(_hunt, tasks, workers=workers, on_progress=on_progress)


def _hunt(task: tuple[str, int, int]) -> MutantResult:
    name, first, num_seeds = task
    mutant: Mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    if mutant.test:
        return _hunt_by_test(mutant)
    judge = VerificationCache()
    for seed in range(first, first + num_seeds):
        tools = Tools(judge=judge)  # caches of faulty nodes are wrong, too
        verdict = judge_plan(draw_plan(seed), tools, applied=mutant.applied())
        if verdict.breaches:
            laws = tuple(breach.law for breach in verdict.breaches)
            what = verdict.breaches[0].what
            return MutantResult(name, mutant.change, laws, what, seed, seed - first + 1)
    return MutantResult(name, mutant.change, (), "", None, num_seeds)


def _hunt_by_test(mutant: Mutant) -> MutantResult:
    """Run the test that must fail, in a process of its own with the mutant applied."""
    done = subprocess.run(
        [sys.executable, "-m", "campaigns.faults.mutants", mutant.name],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=_TEST_S,
        check=False,
    )
    is_noticed = done.returncode == _TESTS_FAILED
    what = next((line for line in done.stdout.splitlines() if line.startswith("E  ")), "").removeprefix("E").strip()
    return MutantResult(mutant.name, mutant.change, (f"`{mutant.test}`",) if is_noticed else (), what, None, 0)
