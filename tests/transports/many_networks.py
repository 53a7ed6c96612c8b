"""Five hundred networks in trouble, half of them under each quorum rule: two files, so that both halves run at once.

A hundred are part of every `make test`; the others are a campaign (`make test-all`).
"""

from collections.abc import Callable, Sequence

import pytest
from _pytest.mark import ParameterSet

from campaigns.faults.laws import Breach
from campaigns.faults.mutants import MUTANTS
from campaigns.faults.plan import FaultPlan, draw_plan
from campaigns.faults.trial import Tools, judge_plan, replay_command, try_seed

NUM_SEEDS = 500
NUM_ALWAYS = 100
CHUNK = 25


def bundle_seeds(first: int) -> list[ParameterSet]:
    """Every second seed from 0 (`majority`) or 1 (`bft`) on, in bundles."""
    return [
        pytest.param(
            range(first + start, first + start + 2 * CHUNK, 2),
            marks=() if start < NUM_ALWAYS else pytest.mark.campaign,
            id=str(first + start),
        )
        for start in range(0, NUM_SEEDS, 2 * CHUNK)
    ]


def validate_laws(seeds: Sequence[int]) -> None:
    """Fails with the whole story of the first of these networks that breaks a law."""
    tools = Tools()
    for seed in seeds:
        verdict = try_seed(seed, tools=tools)
        if not verdict.is_good:
            story = "\n".join(try_seed(seed, with_story=True).story)
            pytest.fail(f"{verdict.breaches[0]}\n{replay_command(seed, None)}\n\n{story}")


def validate_noticed(
    name: str,
    first: int,
    is_noticed: Callable[[Sequence[Breach]], bool],
    fits: Callable[[FaultPlan], bool] = lambda plan: True,
) -> None:
    """Fails unless a mutant is noticed in one of the networks from seed `first` on, where the right protocol is good.

    In which of them it is depends on all that is sent: a change of the protocol may move it to another.
    """
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    for plan in filter(fits, map(draw_plan, range(first, first + 40))):
        if is_noticed(judge_plan(plan, Tools(), applied=mutant.applied()).breaches):
            assert judge_plan(plan, Tools()).is_good
            return
    pytest.fail(f"{name}: not noticed in any of the networks {first} to {first + 39}")
