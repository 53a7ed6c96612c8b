"""Arrays in files on their way to other processes."""

import sys
from pathlib import Path

import numpy as np
import pytest

from bdfl.learning.data import DataSet
from bdfl.learning.dataset import FilePart, blocks_of, pack, unpack
from bdfl.learning.trainer import gather_material, unpack_material
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


def resident_bytes():
    """Of files that this process has mapped."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssFile:"))


@pytest.mark.parametrize("shape", [(0, 3), (1, 2), (7, 2**20), (5, 2**22 + 1)])
def test_blocks_are_all_rows_once_in_order(shape):
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    blocks = list(blocks_of(array))
    assert len(blocks) == {0: 0, 1: 1, 7: 2, 5: 5}[shape[0]]
    assert np.array_equal(np.concatenate([array[:0], *blocks]), array)


@pytest.mark.skipif(sys.platform != "linux", reason="memory of mapped files is read from /proc")
def test_a_pass_through_an_array_in_a_file_needs_the_memory_of_some_blocks_and_changes_nothing(tmp_path):
    whole = np.random.default_rng(1).integers(0, 256, (64, 2**20), dtype=np.uint8)
    np.save(tmp_path / "large.npy", whole)
    for stored in (
        np.load(tmp_path / "large.npy", mmap_mode="r"),
        np.load(tmp_path / "large.npy", mmap_mode="r")[3:61],
        np.memmap(tmp_path / "large.npy", np.uint8, mode="r", offset=2**21 + 5, shape=(60, 2**20)),
    ):
        before, most, total = resident_bytes(), 0, 0
        for block in blocks_of(stored):
            total += int(block.sum())
            most = max(most, resident_bytes() - before)
        assert most < 2**24
        assert resident_bytes() - before < 2**22
        assert total == int(np.array(stored).sum())


def test_what_was_written_into_a_private_copy_stays_written_and_travels_as_it_is(tmp_path):
    np.save(tmp_path / "array.npy", np.zeros((8, 2**20), np.uint8))
    copy = np.load(tmp_path / "array.npy", mmap_mode="c")
    copy[:] = 7
    assert sum(int(block.sum()) for block in blocks_of(copy)) == int(copy.sum()) == 7 * 2**23
    assert pack(copy) is copy
