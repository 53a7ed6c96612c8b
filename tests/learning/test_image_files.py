"""Folders of Parquet files and the cache: every layout, every way they can be wrong, and damage that is noticed."""

import contextlib
import io
import json
import os
import sys
import threading
import zlib

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from bdfl.errors import MissingExtra
from bdfl.learning.data import BadData, load_data
from bdfl.learning.image_files import decode_images
from bdfl.scenario import DataChoice
from tests.learning.refused_data import refused_line

RNG = np.random.default_rng(0)
TRAIN, TEST = (RNG.integers(0, 256, (count, 5, 4, 3), dtype=np.uint8) for count in (12, 4))
TRAIN_LABELS, TEST_LABELS = np.arange(12) % 3, np.arange(4) % 3
BOTH = ("train-00000-of-00001.parquet", "test-00000-of-00001.parquet")


def encode(pixels, kind="PNG", **options):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def write(path, images=None, labels=TEST_LABELS, *, image="img", label="label", names=None):
    """A Parquet file of encoded images (or any other column) with labels, as the hub has them."""
    images = [encode(pixels) for pixels in TEST] if images is None else images
    if images and (images[0] is None or isinstance(images[0], bytes)):
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        images = pa.array([{"bytes": content, "path": "x.png"} for content in images], type=kind)
    table = pa.table({image: images, label: labels})
    if names is not None:
        features = {label: {"names": names, "_type": "ClassLabel"}, image: {"_type": "Image"}}
        about = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": about})
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path)
    return path


@pytest.fixture
def folder(tmp_path):
    """A folder in good order; tests put one thing in it out of order."""
    write(tmp_path / "small" / BOTH[0], [encode(pixels) for pixels in TRAIN], TRAIN_LABELS)
    write(tmp_path / "small" / BOTH[1])
    return tmp_path / "small"


@pytest.fixture
def load(tmp_path):
    return lambda source, **settings: load_data(DataChoice(source=str(source), **settings), cache=tmp_path / "cache")


@pytest.fixture
def refusal(load):
    return lambda source, **settings: refused_line(lambda: load(source, **settings))


def assert_whole(data):
    assert (data.train_inputs == TRAIN).all()
    assert (data.test_inputs == TEST).all()
    assert data.train_labels.tolist() == TRAIN_LABELS.tolist()
    assert data.test_labels.tolist() == TEST_LABELS.tolist()


# layouts


def test_a_folder_is_decoded_without_loss(folder, load):
    data = load(folder)
    assert_whole(data)
    assert data.name == "small"
    assert data.label_names == ("0", "1", "2")


@pytest.mark.parametrize("layout", ["{}-00000-of-00001", "data/{}-00000-of-00001", "{}", "plain/{}/0000"])
def test_files_may_lie_below_the_folder(tmp_path, load, layout):
    write(tmp_path / "deep" / f"{layout.format('train')}.parquet", [encode(pixels) for pixels in TRAIN], TRAIN_LABELS)
    write(tmp_path / "deep" / f"{layout.format('test')}.parquet")
    write(tmp_path / "deep" / ".cache" / "train-00000-of-00001.parquet")
    assert_whole(load(tmp_path / "deep"))


def test_shards_are_joined_in_their_order(folder, load):
    (folder / BOTH[0]).unlink()
    for number, part in enumerate((slice(0, 5), slice(5, 7), slice(7, 12))):
        write(
            folder / f"train-0000{number}-of-00003.parquet",
            [encode(pixels) for pixels in TRAIN[part]],
            TRAIN_LABELS[part],
        )
    assert_whole(load(folder))


def test_columns_have_usual_names_or_are_named(tmp_path, load, refusal):
    for name in BOTH:
        write(tmp_path / "usual" / name, image="image", label="labels")
        write(tmp_path / "own" / name, image="picture", label="kind")
    assert (load(tmp_path / "usual").test_inputs == TEST).all()
    assert (load(tmp_path / "own", input_column="picture", label_column="kind").test_inputs == TEST).all()
    assert "columns picture, kind, expected img, image, input or another as data.input_col" in refusal(tmp_path / "own")
    assert "expected label, labels or another as data.label_col" in refusal(tmp_path / "own", input_column="picture")
    assert "columns picture, kind, expected photo" in refusal(tmp_path / "own", input_column="photo")


def test_labels_are_named_as_the_hub_names_them(folder, load, refusal):
    images = [encode(pixels) for pixels in TRAIN]
    write(folder / BOTH[0], images, TRAIN_LABELS, names=["cat", "dog", "eel", "fox"])
    assert load(folder).label_names == ("cat", "dog", "eel", "fox")
    write(folder / BOTH[0], images, TRAIN_LABELS, names=["cat", "dog"])
    assert "label 2 of sample 2, expected 0 to 1" in refusal(folder)


def test_metadata_that_make_no_sense_name_nothing(folder, load):
    table = parquet.read_table(folder / BOTH[0])
    parquet.write_table(table.replace_schema_metadata({"huggingface": "{"}), folder / BOTH[0])
    assert load(folder).label_names == ("0", "1", "2")


# images


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP", "TIFF"])
def test_lossless_formats_give_back_every_byte(kind):
    options = {"lossless": True} if kind == "WEBP" else {}
    assert (decode_images("here", [encode(pixels, kind, **options) for pixels in TRAIN], len(TRAIN)) == TRAIN).all()


def test_grey_images_have_one_channel_and_palettes_three():
    assert decode_images("here", [encode(TRAIN[0, ..., 0])], 1).shape == (1, 5, 4, 1)
    file = io.BytesIO()
    Image.fromarray(TRAIN[0, ..., 0] % 4).convert("P").save(file, "PNG")
    assert decode_images("here", [file.getvalue()], 1).shape == (1, 5, 4, 3)


def test_many_images_stay_in_their_order():
    pixels = np.arange(1500, dtype=np.uint16)
    images = np.stack([pixels % 256, pixels // 256], axis=1).astype(np.uint8)[:, np.newaxis]  # (images, 1, 2)
    assert (decode_images("here", map(encode, images), 1500)[..., 0] == images).all()


def png_of(width, height):
    """A PNG that says it is this large and holds next to nothing."""
    small = bytearray(encode(np.zeros((1, 1), dtype=np.uint8)))
    small[16:24] = width.to_bytes(4) + height.to_bytes(4)
    small[29:33] = zlib.crc32(small[12:29]).to_bytes(4)
    return bytes(small)


GOOD = encode(TRAIN[0])


@pytest.mark.parametrize(
    ("images", "line"),
    [
        ([GOOD, b"hello"], "image 1: not readable: unknown format, expected an image as PNG"),
        ([b"", GOOD], "image 0: not readable: unknown format, expected an image as PNG"),
        ([GOOD, None], "image 1: no bytes, expected an encoded image"),
        ([GOOD, GOOD[:50]], "image 1: does not decode: "),
        (
            [GOOD, encode(TRAIN[0][:4])],
            "image 1: an image of 4x4 pixels and 3 channels, expected 5x4 pixels and 3 chan",
        ),
        ([GOOD, encode(TRAIN[0, ..., 0])], "an image of 5x4 pixels and 1 channel, expected 5x4 pixels and 3 channels"),
        ([encode(np.zeros((5, 4), dtype=np.uint16))], "image 0: an image of mode I;16, expected one of 1, L, P, RGB"),
        ([encode(np.zeros((1025, 2), dtype=np.uint8))], "image 0: 1025x2 pixels, expected sides from 1 to 1024"),
        ([GOOD, encode(np.zeros((1025, 2), dtype=np.uint8))], "image 1: 1025x2 pixels, expected sides from 1 to 1024"),
        ([png_of(60_000, 60_000)], "image 0: "),
        ([GOOD, png_of(10_000, 10_000)], "image 1: "),
        ([b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"], "image 0: not readable: unknown format"),
    ],
)
def test_an_image_that_cannot_be_used_is_named(images, line):
    with pytest.raises(BadData) as caught:
        decode_images("here", images, len(images))
    assert str(caught.value).startswith("data here ")
    assert line in str(caught.value)


def test_images_larger_than_memory_are_refused_before_they_are_decoded():
    image = encode(np.zeros((1024, 1024, 3), dtype=np.uint8))
    with pytest.raises(BadData, match="10000 images of 1024x1024 pixels and 3 channels, expected at most 16 GiB"):
        decode_images("here", [image], 10_000)


def test_fewer_images_than_promised_are_noticed():
    with pytest.raises(BadData, match="1 images, expected 2"):
        decode_images("here", [GOOD], 2)


# folders in disorder


def test_a_folder_without_data_is_refused(tmp_path, refusal):
    (tmp_path / "empty").mkdir()
    assert "no Parquet files, expected train-*.parquet" in refusal(tmp_path / "empty")
    write(tmp_path / "other" / "validation-00000-of-00001.parquet")
    assert "1 Parquet files but none of train, expected train-*.parquet" in refusal(tmp_path / "other")


def test_training_data_without_test_data_are_refused(folder, refusal):
    (folder / BOTH[1]).unlink()
    assert "1 Parquet files but none of test, expected test-*.parquet" in refusal(folder)


def test_a_missing_shard_is_noticed(folder, refusal):
    (folder / BOTH[0]).rename(folder / "train-00000-of-00002.parquet")
    assert "1 files of train, expected all of train-00000-of-00002.parquet" in refusal(folder)


def test_two_configurations_are_not_mixed(folder, refusal):
    write(folder / "full_numbers" / BOTH[0])
    assert "train data in ., full_numbers, expected those of one configuration: give its folder" in refusal(folder)


@pytest.mark.parametrize("keep", [0, 3, 200, -1, -300])
def test_a_truncated_file_is_refused(folder, refusal, keep):
    content = (folder / BOTH[0]).read_bytes()
    (folder / BOTH[0]).write_bytes(content[:keep])
    assert f"{BOTH[0]}: " in (line := refusal(folder))
    assert "expected a whole Parquet file" in line


def test_a_file_that_is_not_parquet_is_refused(folder, refusal):
    (folder / BOTH[1]).write_text("hello, I am no Parquet file")
    assert f"{BOTH[1]}: " in (line := refusal(folder))
    assert "expected a whole Parquet file" in line


def test_damage_inside_a_file_is_refused_or_harmless(folder, load):
    content = (folder / BOTH[0]).read_bytes()
    for place in range(0, len(content), 211):
        damaged = bytearray(content)
        damaged[place] ^= 0xFF
        (folder / BOTH[0]).write_bytes(damaged)
        with contextlib.suppress(BadData):
            load(folder)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"labels": [0, 1, 2, -1]}, "label -1 of sample 3, expected 0 to 2"),
        ({"labels": [0, 1, 2, 3]}, "data small test: label 3 of sample 3, expected 0 to 2"),
        ({"labels": [0, 1, None, 2]}, "1 rows without label, expected a label in every row"),
        ({"labels": [0.0, 1.0, 2.0, 0.5]}, "label of type double, expected whole numbers"),
        ({"labels": ["a", "b", "c", "d"]}, "label of type string, expected whole numbers"),
        ({"labels": [True, False, True, False]}, "label of type bool, expected whole numbers"),
        ({"images": [1, 2, 3, 4]}, "img of type int64, expected a struct with an image's encoded bytes"),
        ({"images": [{"path": "a.png"}] * 4}, "img of type struct<path: string>, expected a struct with an image's"),
        ({"images": [{"bytes": "text"}] * 4}, "img of type struct<bytes: string>, expected a struct with an image's"),
        ({"images": [GOOD, GOOD, b"?", GOOD]}, f"{BOTH[1]} image 2: not readable: unknown format, expected an image"),
        ({"images": [GOOD, None, GOOD, GOOD]}, f"{BOTH[1]} image 1: no bytes, expected an encoded image"),
        (
            {"images": [encode(TEST[0][:3])] * 4},
            "test inputs of type uint8 and shape (4, 3, 4, 3), expected samples li",
        ),
        ({"image": "image"}, "columns image, label, expected img, as in the other files"),
        ({"images": pa.array([], pa.struct([("bytes", pa.binary())])), "labels": pa.array([], pa.int64())}, "no rows"),
    ],
)
def test_a_test_set_that_does_not_fit_is_refused(folder, refusal, changes, line):
    write(folder / BOTH[1], **changes)
    assert line in refusal(folder)


def test_a_row_whose_image_is_missing_as_a_whole_is_named(folder, refusal):
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    write(folder / BOTH[1], pa.array([{"bytes": GOOD}, None, {"bytes": GOOD}, {"bytes": GOOD}], type=kind))
    assert "image 1: no bytes, expected an encoded image" in refusal(folder)


@pytest.mark.parametrize(
    ("module", "package", "extra"), [("pyarrow.parquet", "pyarrow", "trace"), ("PIL.Image", "Pillow", "learn")]
)
def test_what_is_not_installed_is_said_with_the_command_that_helps(folder, load, monkeypatch, module, package, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"needs {package}: pip install .*\[{extra}\]"):
        load(folder)


# the cache


def kept_files(tmp_path):
    return sorted(path for path in (tmp_path / "cache").rglob("*") if path.is_file())


@pytest.fixture
def no_decoding(monkeypatch):
    """From its call on, decoding fails the test."""

    def forbid():
        def decode(*_):
            raise AssertionError("decoded again")

        monkeypatch.setattr("bdfl.learning.image_files.decode_images", decode)

    return forbid


def test_images_are_decoded_once_and_come_memory_mapped_and_read_only(folder, load, no_decoding):
    first = load(folder)
    no_decoding()
    second = load(folder)
    assert_whole(second)
    assert first.digest == second.digest
    for data in (first, second):
        assert isinstance(data.train_inputs, np.memmap)
        with pytest.raises(ValueError, match="read-only"):
            data.train_inputs[0] = 0


def test_the_cache_knows_content_not_names(folder, load, no_decoding):
    load(folder)
    no_decoding()
    moved = folder.rename(folder.parent / "moved")
    assert load(moved).name == "moved"
    assert_whole(load(moved))


def test_other_content_of_the_same_size_and_age_is_not_taken_from_the_cache(folder, load):
    load(folder)
    path = folder / BOTH[1]
    before = path.stat()
    write(path, labels=TEST_LABELS[::-1].copy())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert load(folder).test_labels.tolist() == TEST_LABELS[::-1].tolist()


@pytest.mark.parametrize("name", ["about.json", "train_inputs.npy", "train_labels.npy", "test_labels.npy"])
@pytest.mark.parametrize("harm", ["cut", "empty", "gone", "flipped", "header", "text", "other"])
def test_a_damaged_cache_is_noticed_and_rebuilt(folder, load, tmp_path, no_decoding, name, harm):
    load(folder)
    path = next(path for path in kept_files(tmp_path) if path.name == name)
    content = path.read_bytes()
    if harm == "gone":
        path.unlink()
    elif harm == "other" and name.endswith(".npy"):
        np.save(path, np.zeros(3))
    else:
        flipped, header = bytearray(content), bytearray(content)
        flipped[-3] ^= 1
        header[2] ^= 0xFF
        path.write_bytes(
            {"cut": content[:-1], "empty": b"", "flipped": flipped, "header": header, "text": b"hi", "other": b"{}"}[
                harm
            ]
        )
    assert_whole(load(folder))
    assert path.read_bytes() == content
    no_decoding()
    assert_whole(load(folder))


def test_a_cache_that_cannot_be_written_costs_time_but_no_result(folder, tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert_whole(load_data(DataChoice(source=str(folder)), cache=tmp_path / "file"))


def test_a_full_disk_leaves_nothing_half_written(folder, load, tmp_path, monkeypatch):
    def save(file, *_, **__):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numpy.save", save)
    assert_whole(load(folder))
    assert kept_files(tmp_path) == []


def test_many_may_load_at_once(folder, load, tmp_path):
    loaded, start = [], threading.Barrier(6)

    def work():
        start.wait()
        loaded.append(load(folder))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loaded) == 6
    for data in loaded:
        assert_whole(data)
    assert len(kept_files(tmp_path)) == 5  # no remains
