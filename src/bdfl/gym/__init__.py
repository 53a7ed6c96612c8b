"""Scheduling as a Gymnasium environment over the same cost model: `import bdfl.gym`, then `gymnasium.make`.

In `bdfl/Scheduling-v0` the agent selects the clients that train. In `bdfl/SchedulingFrequencies-v0` it also sets the
training and mining frequencies. Needs the extra `gym`.
"""

from bdfl.errors import require

require("bdfl.gym", "gymnasium")

from gymnasium.envs.registration import register, registry  # noqa: E402

from bdfl.gym.env import Form, Frequencies, InvalidEnvironment, SchedulingEnv  # noqa: E402

__all__ = ["FREQUENCIES_ID", "SET_ID", "Form", "Frequencies", "InvalidEnvironment", "SchedulingEnv"]

SET_ID = "bdfl/Scheduling-v0"
FREQUENCIES_ID = "bdfl/SchedulingFrequencies-v0"

for name, form in ((SET_ID, Form.SET), (FREQUENCIES_ID, Form.FREQUENCIES)):
    if name not in registry:
        register(name, entry_point="bdfl.gym.env:SchedulingEnv", kwargs={"form": form.value})
