"""Small federations that learn: clustered points or images, dealt out as a test wants it."""

import numpy as np
import pytest

from bdfl.learning.data import make_data_set
from bdfl.learning.partition import Partition
from bdfl.scenario import Scenario, override_scenario

NUM_LABELS = 4


@pytest.fixture
def small_data():
    """A function that draws a data set of four clusters: bytes in the given image shape, or floats."""

    def draw(shape=(6,), *, num_train=400, num_test=90, as_bytes=False, seed=5):
        rng = np.random.default_rng(seed)
        centres = rng.uniform(60, 190, (NUM_LABELS, *shape))
        labels = rng.integers(NUM_LABELS, size=num_train + num_test)
        inputs = np.clip(centres[labels] + rng.normal(0, 25, (len(labels), *shape)), 0, 255)
        inputs = inputs.astype(np.uint8) if as_bytes else inputs.astype(np.float32)
        train, test = (slice(num_train), slice(num_train, None))
        return make_data_set(
            "small", inputs[train], labels[train], inputs[test], labels[test], label_names=tuple("abcd")
        )

    return draw


@pytest.fixture
def deal():
    """A function that deals the first samples of a data set out to clients: so many to each."""

    def deal_out(data, sizes):
        ends = np.cumsum(sizes)
        indices = tuple(np.arange(end - size, end) for end, size in zip(ends, sizes, strict=True))
        counts = np.array([np.bincount(data.train_labels[own], minlength=data.num_labels) for own in indices])
        return Partition(indices, counts)

    return deal_out


@pytest.fixture
def settings():
    """A function that makes a scenario for learning, with "key=value" changes."""

    def make(*changes):
        quick = ["learning.hidden=[8]", "learning.learning_rate=0.1", "learning.batch=16", "compute.local_updates=7"]
        return override_scenario(Scenario(), [*quick, *changes])

    return make
