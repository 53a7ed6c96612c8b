"""Judge selfish members: networks with one of them, compared with the same networks without.

There are three laws. Share: a member wins no more blocks than its share of the hashing, beyond chance, in each network
and in all networks of a kind. Pace: after the first rounds the mean round lasts at most twice as long as without it.
Entry: a removal that a quorum signed is on the chain within five blocks. Also, a network in which members ran ahead
recovers within three attempts.

If all must train, m = n, a member that does not train stops all training and cannot be removed. Pace is then reported
but not judged.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import sqrt

from bdfl.experiment.parallel import Progress, map_parallel
from bdfl.ledger.cache import VerificationCache
from campaigns.faults.attacks import Attack
from campaigns.faults.laws import ENTRY_BLOCKS
from campaigns.faults.shares import is_too_large
from campaigns.selfish.playing import ATTEMPT_S, Play, Setting, play, recovery_s

MAX_SLOWDOWN = 2.0
MAX_RECOVERY_S = ATTEMPT_S * (1.5 + 2.0 + 2.5)  # three attempts
LEADS_S = (1, 2, 4, 8, 16, 32, 64, 100, 200, 500, 1000)
SCHEDULERS = (
    "exact",
    "drc",
    "random",
    "round-robin",
    "all",
    "oort",
    "power-of-choice",
    "age-of-update",
    "channel-best",
    "energy-greedy",
    "fastest-k",
    "exact-power",
)
NUM_NODES = range(4, 10)
WITHHOLDING = (Attack.WITHHOLD, Attack.RELEASE, Attack.HOLD)
# Reports are trusted, so a member that claims to be slow gets time to mine: its share is reported, not judged.
UNJUDGED_SHARES = frozenset({Attack.FEIGN})


@dataclass(frozen=True)
class Case:
    """One network with its selfish member, compared with its control, and the broken laws."""

    setting: Setting
    num_blocks: int
    num_won: int
    expected: float  # blocks: the sum of its shares of the hashing
    slowdown: float | None  # none: no control
    removed_at: int | None  # height
    broken: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """All networks of an attack with one scheduler and m, or of the attack."""

    attack: Attack
    scheduler: str  # "all together" for the attack
    networks: int
    blocks: int
    won: int
    expected: float
    deviation: float  # standard deviation of the expected number
    worst_slowdown: float | None
    latest_removal: int | None
    broken: tuple[str, ...]


@dataclass(frozen=True)
class Lead:
    """Recovery time of a network in which two members ran ahead."""

    lead_s: float
    recovery_s: float

    @property
    def is_good(self) -> bool:
        return self.recovery_s <= MAX_RECOVERY_S


@dataclass(frozen=True)
class Result:
    """Results of a whole campaign."""

    num_blocks: int
    rows: tuple[Row, ...]
    leads: tuple[Lead, ...]
    failures: tuple[Case, ...]

    @property
    def is_good(self) -> bool:
        return not any(row.broken for row in self.rows) and all(lead.is_good for lead in self.leads)


def draw_settings(
    num_withholding: int, num_grid: int, num_blocks: int, first: int, attacks: Sequence[Attack] = tuple(Attack)
) -> list[tuple[Setting, bool]]:
    """Draw the networks of a campaign, each with a flag whether its pace is compared with a control.

    There are `num_withholding` networks with withholding members, since their share matters most. There are `num_grid`
    networks of every attack with every scheduler, with m = 2, m = n - f and m = n. The number of members cycles from 4
    to 9.
    """
    withholding = [attack for attack in WITHHOLDING if attack in attacks]
    settings = [
        (_setting(first + number, number, SCHEDULERS[0], withholding[number % len(withholding)], num_blocks), False)
        for number in range(num_withholding if withholding else 0)
    ]
    grid = [(attack, name, kind) for attack in attacks for name in SCHEDULERS for kind in range(3)]
    for number, (attack, name, kind) in enumerate(grid * num_grid):
        setting = _setting(first + number, number + number // len(NUM_NODES), name, attack, num_blocks)
        least = (2, setting.num_nodes - (setting.num_nodes - 1) // 3, setting.num_nodes)[kind]
        settings.append((replace(setting, min_selected=least), True))
    return settings


def _setting(seed: int, turn: int, scheduler: str, attack: Attack, num_blocks: int) -> Setting:
    num_nodes = NUM_NODES[turn % len(NUM_NODES)]
    return Setting(seed=seed, num_nodes=num_nodes, scheduler=scheduler, attack=attack, num_blocks=num_blocks)


def run_campaign(
    settings: Sequence[tuple[Setting, bool]],
    *,
    leads_s: Sequence[float] = LEADS_S,
    workers: int | None = None,
    on_progress: Progress | None = None,
) -> Result:
    """Run and judge all networks."""
    cases = map_parallel(_try_setting, settings, workers=workers, on_progress=on_progress)
    leads = map_parallel(recovery_s, leads_s, workers=workers)
    return Result(
        num_blocks=max((setting.num_blocks for setting, _ in settings), default=0),
        rows=tuple(_summarise(cases)),
        leads=tuple(Lead(lead_s, found_s) for lead_s, found_s in zip(leads_s, leads, strict=True)),
        failures=tuple(case for case in cases if case.broken),
    )


def _try_setting(task: tuple[Setting, bool]) -> Case:
    setting, is_compared = task
    cache = VerificationCache()
    found = play(setting, cache)
    compared = slowdown(found, cache) if is_compared else None
    removed_at = None
    if not setting.is_veto:
        removed_at = play(replace(setting, is_removed=True, num_blocks=ENTRY_BLOCKS), cache).removed_at
    return judge(found, compared, removed_at)


def judge(found: Play, compared: float | None, removed_at: int | None) -> Case:
    """Determine the broken laws of one network."""
    setting = found.setting
    broken = []
    expected = sum(found.shares)
    num_blocks = len(found.proposers)
    wins = [(found.proposers.count(one), found.fair[one]) for one in range(setting.num_nodes)]
    if setting.attack not in UNJUDGED_SHARES and any(is_too_large(won, num_blocks, fair) for won, fair in wins):
        broken.append("share")
    is_slow = compared is not None and compared > MAX_SLOWDOWN and not setting.is_veto
    if len(found.proposers) < setting.num_blocks or is_slow:
        broken.append("pace")
    if removed_at is None and not setting.is_veto:
        broken.append("entry")
    return Case(setting, len(found.proposers), found.num_won, expected, compared, removed_at, tuple(broken))


def slowdown(attacked: Play, cache: VerificationCache | None = None) -> float:
    """Return the mean round with the selfish member divided by that without."""
    control = play(replace(attacked.setting, attack=None), cache)
    return attacked.mean_round_s / control.mean_round_s


def _summarise(cases: Sequence[Case]) -> Iterable[Row]:
    for attack in Attack:
        of_attack = [case for case in cases if case.setting.attack is attack]
        if not of_attack:
            continue
        yield _row(attack, "all together", of_attack)
        for name in sorted({_kind(case) for case in of_attack}):
            yield _row(attack, name, [case for case in of_attack if _kind(case) == name])


def _kind(case: Case) -> str:
    setting = case.setting
    least = "n" if setting.is_veto else "2" if setting.min_selected == 2 else "n - f"
    return f"{setting.scheduler}, m = {least}"


def _row(attack: Attack, scheduler: str, cases: Sequence[Case]) -> Row:
    blocks, won = sum(case.num_blocks for case in cases), sum(case.num_won for case in cases)
    expected = sum(case.expected for case in cases)
    broken = {law for case in cases for law in case.broken}
    if attack not in UNJUDGED_SHARES and is_too_large(won, blocks, expected):
        broken.add("share")
    slowdowns = [case.slowdown for case in cases if case.slowdown is not None]
    removals = [case.removed_at for case in cases if case.removed_at is not None]
    return Row(
        attack=attack,
        scheduler=scheduler,
        networks=len(cases),
        blocks=blocks,
        won=won,
        expected=expected,
        deviation=sqrt(expected * (1 - expected / blocks)),
        worst_slowdown=max(slowdowns, default=None),
        latest_removal=max(removals, default=None),
        broken=tuple(sorted(broken)),
    )
