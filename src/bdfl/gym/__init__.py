"""Scheduling as a Gymnasium environment over the same cost model: `import bdfl.gym`, then `gymnasium.make`.

In `bdfl/Scheduling-v0` the agent selects the clients that train. In `bdfl/SchedulingFrequencies-v0` it also sets the
training and mining frequencies. Needs the extra `gym`.
"""

from bdfl.errors import require

require("bdfl.gym", "gymnasium")

from bdfl.gym.actions import Form, Frequencies  # noqa: E402
from bdfl.gym.env import InvalidEnvironment, SchedulingEnv  # noqa: E402
from bdfl.gym.registering import FREQUENCIES_ID, SET_ID, register_environments  # noqa: E402

__all__ = ["FREQUENCIES_ID", "SET_ID", "Form", "Frequencies", "InvalidEnvironment", "SchedulingEnv"]

register_environments()
