"""Computed descriptions of the differences between a campaign's scenario and the shipped one."""

from collections.abc import Sequence

from bdfl.reproduce.paper import FULL_SIZES
from bdfl.scenario import Scenario, describe_scenario

_LOCAL_STEPS = ("learning.unit", "learning.local_steps")  # described in one phrase
_SAID_ELSEWHERE = ("rounds", "seed", "data.source", *_LOCAL_STEPS)
_WITHOUT_DELAY = ("data.", "learning.")  # sections that the delay model does not read


def local_steps(scenario: Scenario) -> int:
    """Return the number of local steps or epochs that a client makes in a round."""
    made = scenario.learning.local_steps
    return scenario.compute.local_updates if made is None else made


def describe_changes(used: Scenario, shipped: Scenario) -> list[str]:
    """Return phrases such as `20 of 100 rounds` and `1 instead of 20 local epochs`; none if nothing was changed."""
    phrases: list[str] = []
    if used.rounds < shipped.rounds:
        phrases.append(f"{used.rounds} of {shipped.rounds} rounds")
    elif used.rounds > shipped.rounds:
        phrases.append(f"{used.rounds} instead of {shipped.rounds} rounds")
    made, usual = (local_steps(scenario) for scenario in (used, shipped))
    unit, usual_unit = used.learning.unit.value, shipped.learning.unit.value
    if unit != usual_unit:
        phrases.append(f"{made} local {unit} instead of {usual} local {usual_unit}")
    elif made != usual:
        phrases.append(f"{made} instead of {usual} local {unit}")
    phrases += [f"{key} {value} instead of {was}" for key, value, was in differing_keys(used, shipped)]
    return phrases


def differing_keys(used: Scenario, shipped: Scenario, leave_out: Sequence[str] = _SAID_ELSEWHERE) -> list[list[str]]:
    """Return every key whose value differs, with the value used and the one shipped, as TOML."""
    rows = zip(describe_scenario(used), describe_scenario(shipped), strict=True)
    return [
        [row.key, row.value_text, was.value_text]
        for row, was in rows
        if row.value != was.value and row.key not in (*leave_out, "name", "description")
    ]


def delay_keys(used: Scenario, shipped: Scenario) -> list[str]:
    """Return the changed keys that simulated time may depend on; data and learning settings do not affect it."""
    return [key for key, _, _ in differing_keys(used, shipped) if not key.startswith(_WITHOUT_DELAY)]


def describe_delay(used: Scenario, shipped: Scenario) -> str:
    """Describe in a phrase if simulated time differs from that of the shipped scenario."""
    changed = delay_keys(used, shipped)
    if changed:
        return f"simulated time is affected, by {', '.join(changed)}"
    charged = used.compute.local_updates
    return f"simulated time is not affected: every round is charged H = {charged} passes over a client's data"


def describe_sizes(data_set: str, num_train: int, num_test: int) -> str | None:
    """Describe the splits whose size differs from the published data set; None if none does."""
    found = zip(("training", "test"), (num_train, num_test), FULL_SIZES[data_set], strict=True)
    parts = [f"{count:,} {split} images (published: {full:,})" for split, count, full in found if count != full]
    return f"data: {' and '.join(parts)}" if parts else None
