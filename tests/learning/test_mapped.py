"""Arrays in files on their way to other processes."""

import numpy as np
import pytest

from bdfl.learning.bench import gather_material, unpack_material
from bdfl.learning.data import DataSet
from bdfl.learning.mapped import FilePart, pack, unpack
from bdfl.scenario import Scenario

ARRAY = np.arange(24, dtype=np.int64).reshape(6, 2, 2)


@pytest.fixture
def mapped(tmp_path):
    np.save(tmp_path / "array.npy", ARRAY)
    return np.load(tmp_path / "array.npy", mmap_mode="r")


@pytest.mark.parametrize("part", [slice(None), slice(2, None), slice(3, 5), 4])
def test_a_part_of_a_file_stays_in_the_file(mapped, part):
    packed = pack(mapped[part])
    assert isinstance(packed, FilePart)
    assert unpack(packed).tolist() == ARRAY[part].tolist()
    assert not unpack(packed).flags.writeable
    assert isinstance(pack(np.asarray(mapped)[part]), FilePart)


def test_everything_else_stays_as_it_is(mapped):
    for value in (ARRAY, ARRAY[1:], mapped[:, 1], mapped[:0], (ARRAY,), None, 5, np.array(mapped)):
        assert pack(value) is value
        assert unpack(value) is value


def test_data_in_files_are_not_sent_along(tmp_path):
    inputs = np.random.default_rng(1).integers(0, 256, (500, 16, 16, 3)).astype(np.uint8)
    labels = np.arange(500) % 10
    np.save(tmp_path / "inputs.npy", inputs)
    stored = np.load(tmp_path / "inputs.npy", mmap_mode="r")
    data = DataSet("stored", stored[:400], labels[:400], stored[400:], labels[400:], tuple("0123456789"))
    material = gather_material(Scenario(), data, (np.arange(5),))
    sent = material.pack()
    assert sum(isinstance(part, FilePart) for part in sent) == 2
    assert not any(isinstance(part, np.ndarray) and part.dtype == np.uint8 for part in sent)
    received = unpack_material(sent)
    assert (received.train_inputs == inputs[:400]).all()
    assert (received.test_inputs == inputs[400:]).all()
    assert (received.test_labels == labels[400:]).all()
    assert (received.scaling.factor == material.scaling.factor).all()
