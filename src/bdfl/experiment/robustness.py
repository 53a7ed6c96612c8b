"""Aggregation rules against model poisoning: every rule and every attack, on even and on skewed data.

The strengths of `ATTACKS` were chosen on the mean alone, before any robust rule was run: of 1, 2, 5, 10, 20 and 50 the
least at which it ends 20 points or more below the clean run (seed 1000 of the scenario `poisoning`, evenly
partitioned).
"""

from collections.abc import Sequence
from itertools import product

import msgspec
import numpy as np

from bdfl.aggregation import get_aggregator, min_updates
from bdfl.experiment.parallel import Progress, list_seeds, map_parallel
from bdfl.experiment.statistics import Interval, mean_interval
from bdfl.experiment.training_run import run_group
from bdfl.scenario import Adversaries, Aggregation, Behaviour, PartitionMethod, Scenario, override_scenario
from bdfl.scheduling.registry import InvalidChoice, validate_choices

BORNE_POINTS = 2.0  # a rule withstands an attack if it ends at most this far below the clean run
VISIBLE_POINTS = 10.0  # the mean fails visibly if it ends at least this far below
SKEWED_DIRICHLET = 0.5
MEAN = "mean"
RULES = (MEAN, "median", "trimmed-mean", "krum", "multi-krum", "minimum-diameter")


class Attack(msgspec.Struct, frozen=True):
    """Behaviour of the adversaries, and its strength; None if it has none."""

    kind: Behaviour
    strength: float | None = None


CLEAN = Attack(Behaviour.HONEST)
ATTACKS = (
    Attack(Behaviour.LABEL_FLIP),
    Attack(Behaviour.SIGN_FLIP, 1.0),
    Attack(Behaviour.SCALING, 5.0),
    Attack(Behaviour.GAUSSIAN, 20.0),
    Attack(Behaviour.LAZY),
)


class RuleChoice(msgspec.Struct, frozen=True):
    """A rule, and the number of faulty updates it must tolerate."""

    name: str
    faulty: int


class PoisonedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run: partition, attack and rule, and the accuracy of the model."""

    partition: PartitionMethod
    attack: Attack
    rule: RuleChoice
    seed: int
    accuracy: list[float]  # after every evaluated round; the last is the final one


class PoisonedCell(msgspec.Struct, frozen=True, kw_only=True):
    """A rule against an attack over all seeds."""

    partition: PartitionMethod
    attack: Attack
    rule: RuleChoice
    final_percent: Interval  # accuracy of the last model
    least_percent: float  # of all seeds
    greatest_percent: float
    below_clean: Interval  # points below the mean without an attack on the same seed
    most_below_clean: float  # of all seeds
    is_borne: bool  # within `BORNE_POINTS` of the clean run, on average over seeds


class PoisoningVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of an attack against the mean and against the best robust rule."""

    partition: PartitionMethod
    attack: Attack
    mean_below: float  # points below the clean run, on average over seeds
    best_rule: str | None  # the robust rule that ends highest; None if none was played
    best_below: float | None
    mean_fails: bool  # `VISIBLE_POINTS` or more below
    is_borne: bool  # the best robust rule is within `BORNE_POINTS`


class Poisoning(msgspec.Struct, frozen=True, kw_only=True):
    """All rules against all attacks."""

    scenario: str
    rounds: int
    num_clients: int
    members: list[int]  # the adversaries
    dirichlet: float  # concentration of skewed data
    seeds: list[int]
    partitions: list[PartitionMethod]
    attacks: list[Attack]  # the first is none: the clean run
    rules: list[RuleChoice]
    cells: list[PoisonedCell]
    verdicts: list[PoisoningVerdict]
    runs: list[PoisonedRun]

    def find_cell(self, partition: PartitionMethod, attack: Attack, rule: RuleChoice) -> PoisonedCell:
        """Return the cell of a rule against an attack."""
        return next(
            cell for cell in self.cells if cell.partition is partition and cell.attack == attack and cell.rule == rule
        )


def play_poisoning(
    scenario: Scenario,
    *,
    attacks: Sequence[Attack] = ATTACKS,
    rules: Sequence[str] = RULES,
    num_seeds: int = 5,
    workers: int | None = None,
    on_progress: Progress | None = None,
) -> Poisoning:
    """Play every rule against every attack of the scenario's adversaries, with seeds from `scenario.seed` on.

    Each is played with even and with skewed data. The clean run is the mean without an attack and is always played. A
    robust rule is configured for the number of adversaries, or for as many as it can tolerate if all clients train.
    `workers` (default: one per core) changes the run time only, never the result.
    """
    seeds = list_seeds(scenario, num_seeds)
    validate_choices([show_attack(attack) for attack in attacks], "attacks")
    validate_choices(rules, "rules")
    if not scenario.adversaries.members:
        raise InvalidChoice("adversaries.members: none given, expected the clients that poison the model")
    num_adversaries = len(set(scenario.adversaries.members))
    choices = [choose_rule(name, scenario.clients.count, num_adversaries) for name in dict.fromkeys((MEAN, *rules))]
    for choice in choices:
        get_aggregator(Aggregation(rule=choice.name, faulty=choice.faulty))  # raises before any work
    partitions = [PartitionMethod.IID, PartitionMethod.DIRICHLET]
    played = list(product(partitions, (CLEAN, *attacks), seeds))
    tasks = [
        [poisoned_scenario(scenario, partition, attack, choice, seed) for choice in choices]
        for partition, attack, seed in played
    ]
    learned = map_parallel(_play_rules, tasks, workers=workers, on_progress=on_progress)
    runs = [
        PoisonedRun(partition=partition, attack=attack, rule=choice, seed=seed, accuracy=accuracy)
        for (partition, attack, seed), accuracies in zip(played, learned, strict=True)
        for choice, accuracy in zip(choices, accuracies, strict=True)
    ]
    cells = summarise_runs(runs)
    return Poisoning(
        scenario=scenario.name,
        rounds=scenario.rounds,
        num_clients=scenario.clients.count,
        members=sorted(set(scenario.adversaries.members)),
        dirichlet=SKEWED_DIRICHLET,
        seeds=seeds,
        partitions=partitions,
        attacks=[CLEAN, *attacks],
        rules=choices,
        cells=cells,
        verdicts=judge_cells(cells),
        runs=runs,
    )


def parse_attacks(text: str) -> list[Attack]:
    """Parse a comma-separated list of attacks, such as `label-flip,scaling:20`; default strengths are in `ATTACKS`."""
    known = {attack.kind: attack for attack in ATTACKS}
    found: list[Attack] = []
    for piece in (part.strip() for part in text.split(",") if part.strip()):
        name, colon, strength = piece.partition(":")
        kinds = [kind for kind in known if kind.value == name]
        if not kinds:
            raise InvalidChoice(f"attacks: {name!r} given, expected some of {', '.join(known)}")
        usual = known[kinds[0]]
        found.append(Attack(usual.kind, _parse_strength(piece, strength, usual)) if colon else usual)
    return found


def show_attack(attack: Attack) -> str:
    """Format an attack: `scaling:20`, or `none`."""
    if attack == CLEAN:
        return "none"
    return attack.kind.value if attack.strength is None else f"{attack.kind.value}:{attack.strength:g}"


def choose_rule(name: str, num_updates: int, num_adversaries: int) -> RuleChoice:
    """Return the rule, configured for all adversaries or as many as it tolerates; the mean tolerates none."""
    borne = [
        faulty
        for faulty in range(num_adversaries + 1)
        if name != MEAN and min_updates(Aggregation(rule=name, faulty=faulty)) <= num_updates
    ]
    return RuleChoice(name, max(borne, default=0))


def summarise_runs(runs: Sequence[PoisonedRun]) -> list[PoisonedCell]:
    """Return a cell for every partition, attack and rule, in the order in which they were played."""
    final = {(run.partition, run.attack, run.rule, run.seed): 100.0 * run.accuracy[-1] for run in runs}
    clean = {
        (partition, seed): percent
        for (partition, attack, rule, seed), percent in final.items()
        if attack == CLEAN and rule.name == MEAN
    }
    cells: list[PoisonedCell] = []
    for partition, attack, rule in dict.fromkeys((run.partition, run.attack, run.rule) for run in runs):
        seeds = [seed for *key, seed in final if key == [partition, attack, rule]]
        percents = [final[partition, attack, rule, seed] for seed in seeds]
        below = [clean[partition, seed] - percent for seed, percent in zip(seeds, percents, strict=True)]
        cells.append(
            PoisonedCell(
                partition=partition,
                attack=attack,
                rule=rule,
                final_percent=mean_interval(percents),
                least_percent=min(percents),
                greatest_percent=max(percents),
                below_clean=mean_interval(below),
                most_below_clean=max(below),
                is_borne=mean_interval(below).mean <= BORNE_POINTS,
            )
        )
    return cells


def judge_cells(cells: Sequence[PoisonedCell]) -> list[PoisoningVerdict]:
    """Return a verdict for every partition and attack."""
    verdicts: list[PoisoningVerdict] = []
    for partition, attack in dict.fromkeys((cell.partition, cell.attack) for cell in cells if cell.attack != CLEAN):
        against = {cell.rule.name: cell for cell in cells if (cell.partition, cell.attack) == (partition, attack)}
        robust = [cell for name, cell in against.items() if name != MEAN]
        best = min(robust, key=lambda cell: cell.below_clean.mean, default=None)
        verdicts.append(
            PoisoningVerdict(
                partition=partition,
                attack=attack,
                mean_below=against[MEAN].below_clean.mean,
                best_rule=None if best is None else best.rule.name,
                best_below=None if best is None else best.below_clean.mean,
                mean_fails=against[MEAN].below_clean.mean >= VISIBLE_POINTS,
                is_borne=best is not None and best.is_borne,
            )
        )
    return verdicts


def poisoned_scenario(
    scenario: Scenario, partition: PartitionMethod, attack: Attack, rule: RuleChoice, seed: int
) -> Scenario:
    """Return the scenario of one run of the campaign."""
    strength = Adversaries().strength if attack.strength is None else attack.strength
    return override_scenario(
        scenario,
        [
            f"seed={seed}",
            f"partition.method={partition}",
            f"partition.dirichlet={SKEWED_DIRICHLET}",
            f"learning.aggregation.rule={rule.name}",
            f"learning.aggregation.faulty={rule.faulty}",
            f"adversaries.kind={attack.kind}",
            f"adversaries.strength={strength}",
        ],
    )


def _play_rules(scenarios: Sequence[Scenario]) -> list[list[float]]:
    """Accuracies of runs that differ in their rule alone: data and trainer are shared."""
    accuracies = [run.learning.accuracy for run in run_group(scenarios)]
    return [accuracy[np.isfinite(accuracy)].tolist() for accuracy in accuracies]


def _parse_strength(piece: str, text: str, usual: Attack) -> float:
    if usual.strength is None:
        raise InvalidChoice(f"attacks: {piece!r} given, {usual.kind.value} has no strength")
    try:
        strength = float(text)
    except ValueError:
        strength = 0.0
    if not 0.0 < strength < float("inf"):
        raise InvalidChoice(f"attacks: {piece!r} given, expected a strength above 0 after the colon")
    return strength
