"""Fault campaign on networks of real processes, one after the other, each checked against invariants."""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from bdfl.scenario import QuorumRule
from campaigns.live_faults.access_points import NUM_ACCESS_POINTS, play_access_points
from campaigns.live_faults.clocks import play_clocks
from campaigns.live_faults.disks import play_disks
from campaigns.live_faults.harness import Arena, NotInTime, Setting, open_arena
from campaigns.live_faults.invariants import judge_aftermath
from campaigns.live_faults.kills import play_kills
from campaigns.live_faults.recovery import Return
from campaigns.live_faults.results import Figures, LiveBreach, LiveOutcome, TroubleKind
from campaigns.live_faults.slow_line import NUM_ACCESS_POINTS as NUM_SLOW_POINTS, open_lines, play_slow_line
from campaigns.live_faults.stops import play_dead, play_stop

KILLS_PER_NETWORK = 25
GRACE_S = 60.0  # between SIGTERM and a breach


@dataclass(frozen=True)
class Amounts:
    """Number and duration of faults."""

    kills: int = 20
    stop_s: float = 30.0
    blocks: int = 10  # to be made by the remaining nodes, or over a slow line


@dataclass(frozen=True)
class Trial:
    """One network to test."""

    kind: TroubleKind
    setting: Setting
    amounts: Amounts

    @property
    def name(self) -> str:
        return f"{self.kind.value}-{self.setting.quorum.value}-{self.setting.seed}"

    @property
    def command(self) -> str:
        """Command that repeats the test; process scheduling still differs."""
        setting = self.setting
        kills = f" --kills {self.amounts.kills}" if self.kind is TroubleKind.KILL else ""
        return (
            f"python -m campaigns live_faults --only {self.kind.value}{kills} --nodes {setting.num_nodes} "
            f"--quorum {setting.quorum.value} --seed {setting.seed}"
        )


class LiveCampaign(msgspec.Struct, frozen=True, kw_only=True):
    """Outcomes of all networks."""

    outcomes: tuple[LiveOutcome, ...]

    @property
    def failures(self) -> list[LiveOutcome]:
        return [outcome for outcome in self.outcomes if not outcome.is_good]


def plan_trials(
    kinds: Sequence[TroubleKind], setting: Setting, quorum: QuorumRule | None, amounts: Amounts
) -> list[Trial]:
    """Plan the networks of a campaign. By default the quorum is `bft`; permanent losses are tested with both rules.

    Kills are spread over several networks with consecutive seeds.
    """
    trials = []
    for kind in kinds:
        both = kind is TroubleKind.DEAD and quorum is None
        for rule in tuple(QuorumRule) if both else (quorum or QuorumRule.BFT,):
            chosen = replace(setting, quorum=rule)
            if kind is not TroubleKind.KILL:
                trials.append(Trial(kind, chosen, amounts))
                continue
            for number, first in enumerate(range(0, amounts.kills, KILLS_PER_NETWORK)):
                part = replace(amounts, kills=min(KILLS_PER_NETWORK, amounts.kills - first))
                trials.append(Trial(kind, replace(chosen, seed=setting.seed + number), part))
    return trials


def run_live_campaign(
    trials: Sequence[Trial],
    folder: Path,
    *,
    keeps: bool = False,
    on_trial: Callable[[Trial, LiveOutcome | None], None] | None = None,
) -> Iterator[LiveCampaign]:
    """Test one network after the other; yield all outcomes so far after each.

    Folders of failed networks are kept, the others only if `keeps`. `on_trial` is called before each with None, and
    after each with its outcome.
    """
    outcomes: list[LiveOutcome] = []
    for trial in trials:
        if on_trial is not None:
            on_trial(trial, None)
        place = folder / trial.name
        outcome = try_network(trial, place)
        if outcome.is_good and not keeps:
            shutil.rmtree(place, ignore_errors=True)
        outcomes.append(outcome)
        if on_trial is not None:
            on_trial(trial, outcome)
        yield LiveCampaign(outcomes=tuple(outcomes))
    if not any(folder.iterdir()):
        folder.rmdir()


def try_network(trial: Trial, folder: Path) -> LiveOutcome:
    """Create a network, inject faults, stop it and check all invariants."""
    began_s = time.monotonic()
    figures, breaches, returns = Figures(num_trials=0), list[LiveBreach](), list[Return]()
    arena: Arena | None = None
    try:
        with _open(trial, folder) as (arena, play):
            figures = play()
            arena.wait_for_blocks(1, arena.up)
            stubborn = arena.network.stop(GRACE_S)
            breaches += [LiveBreach(law="end", what=f"{name} had to be killed") for name in stubborn]
    except NotInTime as error:
        moment_s = None if arena is None else arena.moment_s
        breaches.append(LiveBreach(law="progress", what=str(error), moment_s=moment_s))
    breaches += figures.breaches
    if arena is not None:
        found, returns = judge_aftermath(arena.folder, arena.began_s, arena.left)
        breaches += found
        _write_breaches(arena, breaches)
    watched = [one for one in returns if one.is_watched]
    return LiveOutcome(
        kind=trial.kind,
        seed=trial.setting.seed,
        num_nodes=trial.setting.num_nodes,
        quorum=trial.setting.quorum,
        seconds=time.monotonic() - began_s,
        height=0 if arena is None else arena.height_of(),
        figures=figures,
        num_returns=len(watched),
        return_rounds=max((one.rounds for one in watched if one.rounds is not None), default=None),
        return_s=max((one.seconds for one in watched if one.seconds is not None), default=None),
        folder=str(folder),
        breaches=tuple(breaches),
    )


@contextmanager
def _open(trial: Trial, folder: Path) -> Iterator[tuple[Arena, Callable[[], Figures]]]:
    """Run the network of a trial inside the `with` block; yield it with the function that injects the faults."""
    kind, setting, amounts = trial.kind, trial.setting, trial.amounts
    if kind is TroubleKind.SLOW:
        with (
            open_lines(setting.seed) as (route, relays),
            open_arena(folder, setting, num_access_points=NUM_SLOW_POINTS, route=route) as arena,
        ):
            yield arena, lambda: play_slow_line(arena, relays, amounts.blocks)
        return
    num_points = NUM_ACCESS_POINTS if kind is TroubleKind.ACCESS_POINT else 0
    with open_arena(folder, setting, num_access_points=num_points) as arena:
        yield arena, lambda: _play(kind, arena, amounts)


def _play(kind: TroubleKind, arena: Arena, amounts: Amounts) -> Figures:
    match kind:
        case TroubleKind.KILL:
            return play_kills(arena, amounts.kills)
        case TroubleKind.DEAD:
            return play_dead(arena, amounts.blocks)
        case TroubleKind.STOP:
            return play_stop(arena, amounts.stop_s)
        case TroubleKind.ACCESS_POINT:
            return play_access_points(arena)
        case TroubleKind.DISK:
            return play_disks(arena)
        case TroubleKind.CLOCK:
            return play_clocks(arena)
        case TroubleKind.SLOW:
            raise AssertionError("has lines of its own")


def _write_breaches(arena: Arena, breaches: Sequence[LiveBreach]) -> None:
    for breach in breaches:
        arena.tell(f"BROKEN {breach}")
