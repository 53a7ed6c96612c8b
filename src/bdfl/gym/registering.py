"""Registration of the environments with `gymnasium.make`."""

from gymnasium import register, registry

from bdfl.gym.actions import Form

SET_ID = "bdfl/Scheduling-v0"
FREQUENCIES_ID = "bdfl/SchedulingFrequencies-v0"


def register_environments() -> None:
    """Register both names with Gymnasium; idempotent."""
    for name, form in ((SET_ID, Form.SET), (FREQUENCIES_ID, Form.FREQUENCIES)):
        if name not in registry:
            register(name, entry_point="bdfl.gym.env:SchedulingEnv", kwargs={"form": form.value})
