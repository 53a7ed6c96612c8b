"""Data sets: what every one promises, digits, arrays from files and from somebody's own function."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bdfl.errors import MissingExtra
from bdfl.learning import data as data_sources
from bdfl.learning.data import SOURCES, BadData, DataSet, default_cache, load_data, make_data_set
from bdfl.scenario import DataChoice
from tests.learning.refused_data import refused_line

IMAGES = np.arange(6 * 2 * 3, dtype=np.uint8).reshape(6, 2, 3, 1)
FEATURES = np.linspace(-1, 1, 12, dtype=np.float32).reshape(6, 2)
LABELS = np.array([0, 1, 2, 0, 1, 2])
DIGITS_DIGEST = "a9f389634aae2217"


def load(source, **settings):
    return load_data(DataChoice(source=str(source), **settings))


def refusal(source, **settings):
    return refused_line(lambda: load(source, **settings))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in sys.modules[name].__file__:
            del sys.modules[name]


# digits


def test_digits_are_all_there_lossless_and_split_by_class():
    from sklearn.datasets import load_digits

    data, original = load("digits"), load_digits()
    assert data.train_inputs.dtype == np.uint8
    assert data.input_shape == (8, 8, 1)
    pixels = np.concatenate([data.train_inputs, data.test_inputs]).reshape(-1, 64) / 15.0
    assert sorted(map(tuple, pixels)) == sorted(map(tuple, original.data))
    train, test = np.bincount(data.train_labels), np.bincount(data.test_labels)
    assert (train + test == np.bincount(original.target)).all()
    assert np.allclose(test / (train + test), 0.2, atol=0.01)
    assert data.label_names == tuple("0123456789")


def test_digits_are_the_same_every_time():
    # a golden vector: whoever changes it changes every result on digits
    assert load("digits").digest == load("digits").digest
    assert load("digits").digest.startswith(DIGITS_DIGEST)


def test_test_samples_cuts_the_test_set_to_its_first():
    whole, cut = load("digits"), load("digits", test_samples=7)
    assert (cut.test_inputs == whole.test_inputs[:7]).all()
    assert (cut.test_labels == whole.test_labels[:7]).all()
    assert cut.train_inputs.shape == whole.train_inputs.shape
    assert len(load("digits", test_samples=10_000).test_labels) == len(whole.test_labels)


def test_digits_are_the_same_whether_or_not_scikit_learn_keeps_them_where_it_does_now(monkeypatch):
    here = load("digits").digest
    monkeypatch.setattr(data_sources, "_DIGITS_FILE", Path("elsewhere.csv"))
    assert load("digits").digest == here


def test_digits_are_read_without_importing_what_else_they_come_with():
    code = "import sys; from bdfl.learning.data import load_digits; load_digits(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "bdfl.learning.data" in loaded
    assert not {"sklearn", "scipy", "pandas", "torch"} & set(loaded)


def test_without_scikit_learn_digits_say_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtra, match=r"the data set digits needs scikit-learn: pip install .*\[learn\]"):
        load("digits")


# what every data set promises


def test_arrays_become_a_data_set_with_labels_named_by_number():
    data = make_data_set("mine", IMAGES, LABELS.astype(np.uint8), IMAGES[:2], LABELS[:2])
    assert data.train_labels.dtype == np.int64
    assert data.label_names == ("0", "1", "2")
    assert data.num_labels == 3
    assert make_data_set("mine", IMAGES, LABELS, IMAGES, LABELS, label_names=tuple("abcd")).num_labels == 4


def test_grey_images_get_a_channel_and_features_become_float32():
    grey = make_data_set("mine", IMAGES[..., 0], LABELS, IMAGES[..., 0], LABELS)
    assert grey.input_shape == (2, 3, 1)
    features = make_data_set("mine", FEATURES.astype(np.float64), LABELS, FEATURES, LABELS)
    assert features.train_inputs.dtype == np.float32


def test_the_digest_tells_every_array_apart():
    def digest(**changes):
        arrays = {"train_inputs": IMAGES, "train_labels": LABELS, "test_inputs": IMAGES, "test_labels": LABELS}
        return make_data_set("mine", **(arrays | changes)).digest

    turned = IMAGES.reshape(6, 3, 2, 1)
    others = [
        digest(),
        digest(train_inputs=IMAGES[::-1]),
        digest(test_labels=LABELS[::-1]),
        digest(train_labels=LABELS[::-1]),
        digest(train_inputs=turned, test_inputs=turned),
    ]
    assert len(set(others)) == len(others)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"train_labels": [0, 1, 2, 0, 1, -1]}, "label -1 of sample 5, expected 0 to 2"),
        ({"test_labels": [0, 1, 2, 0, 3, 1]}, "data mine test: label 3 of sample 4, expected 0 to 2"),
        ({"train_labels": [0, 1, 2, 0, 1, 99]}, "label 99 among 6 samples, expected labels from 0 without gaps"),
        ({"train_labels": np.array([0, 1, 2, 0, 1, 2**64 - 1], dtype=np.uint64)}, "label 18446744073709551615, expect"),
        ({"train_labels": LABELS * 1.0}, "labels of type float64 and shape (6,), expected whole numbers from 0"),
        ({"train_labels": LABELS[:, None]}, "labels of type int64 and shape (6, 1), expected whole numbers from 0"),
        ({"train_labels": LABELS[:4]}, "6 inputs and 4 labels, expected as many of one as of the other"),
        ({"train_labels": LABELS[:0], "train_inputs": IMAGES[:0]}, "data mine train: no samples, expected at least"),
        ({"test_labels": LABELS[:0], "test_inputs": IMAGES[:0]}, "data mine test: no samples, expected at least"),
        ({"test_inputs": IMAGES[:, :1]}, "test inputs of type uint8 and shape (6, 1, 3, 1), expected samples like"),
        ({"test_inputs": FEATURES}, "test inputs of type float32 and shape (6, 2), expected samples like"),
        (
            {"train_inputs": IMAGES.astype(np.int64)},
            "inputs of type int64 and shape (6, 2, 3, 1), expected uint8 image",
        ),
        ({"train_inputs": IMAGES.reshape(6, 6)}, "inputs of type uint8 and shape (6, 6), expected uint8 images"),
        ({"train_inputs": IMAGES[:, :0]}, "inputs of type uint8 and shape (6, 0, 3, 1), expected at least one value"),
        ({"train_inputs": np.array(["a"] * 6)}, "inputs of type <U1 and shape (6,), expected uint8 images"),
        ({"train_inputs": np.full((6, 2), 1e300)}, "a value that is not finite in sample 0, expected finite numbers"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_in_one_line(changes, line):
    arrays = {"train_inputs": IMAGES, "train_labels": LABELS, "test_inputs": IMAGES, "test_labels": LABELS}
    with pytest.raises(BadData) as caught:
        make_data_set("mine", **(arrays | changes))
    assert line in str(caught.value)


def test_a_value_that_is_not_a_number_is_named_by_its_sample():
    broken = FEATURES.copy()
    broken[4, 1] = np.nan
    with pytest.raises(BadData, match="not finite in sample 4"):
        make_data_set("mine", broken, LABELS, FEATURES, LABELS)


# files of arrays


def save(path, **changes):
    arrays = {"train_inputs": IMAGES, "train_labels": LABELS, "test_inputs": IMAGES[:3], "test_labels": LABELS[:3]}
    np.savez_compressed(path, **{name: array for name, array in (arrays | changes).items() if array is not None})
    return path


def test_four_arrays_in_a_file_are_a_data_set(tmp_path):
    data = load(save(tmp_path / "small.npz"))
    assert data.name == "small"
    assert (data.train_inputs == IMAGES).all()
    assert (data.test_labels == LABELS[:3]).all()


def test_a_file_of_arrays_that_cannot_be_used_is_refused_in_one_line(tmp_path):
    lacking = save(tmp_path / "lacking.npz", test_labels=None)
    assert "arrays train_inputs, train_labels, test_inputs, expected train_inputs" in refusal(lacking)
    whole = save(tmp_path / "whole.npz").read_bytes()
    for name, content in {"cut": whole[: len(whole) // 2], "empty": b"", "text": b"hello"}.items():
        (tmp_path / f"{name}.npz").write_bytes(content)
        assert "expected a .npz file of plain arrays" in refusal(tmp_path / f"{name}.npz")
    np.save(tmp_path / "one.npy", IMAGES)
    (tmp_path / "one.npy").rename(tmp_path / "one.npz")
    assert "expected a .npz file of plain arrays" in refusal(tmp_path / "one.npz")


def test_a_damaged_file_of_arrays_is_refused_or_reads_the_same(tmp_path):
    content = save(tmp_path / "whole.npz").read_bytes()
    for place in range(0, len(content), 37):
        damaged = bytearray(content)
        damaged[place] ^= 0xFF
        (tmp_path / "damaged.npz").write_bytes(damaged)
        try:
            data = load(tmp_path / "damaged.npz")
        except BadData:
            continue
        assert (data.train_inputs == IMAGES).all()


def test_a_file_never_runs_code(tmp_path):
    class Trap:
        def __reduce__(self):
            return (Path(tmp_path / "ran").touch, ())

    path = save(tmp_path / "trap.npz", train_inputs=np.array([Trap()], dtype=object))
    assert "expected a .npz file of plain arrays" in refusal(path)
    assert not (tmp_path / "ran").exists()


# somebody's own function


def test_an_own_function_returns_four_arrays_or_a_data_set(here):
    (here / "helper_of_mine.py").write_text("SIZE = 4\n")
    (here / "my_data.py").write_text(
        "import numpy as np\n"
        "from bdfl.learning.data import make_data_set\n"
        "def arrays():\n"
        "    from helper_of_mine import SIZE  # also what is imported late comes from the working folder\n"
        "    inputs = np.ones((SIZE, 3))\n"
        "    return inputs, [0, 1, 0, 1], inputs, [0, 1, 0, 1]\n"
        "def named():\n"
        "    return make_data_set('animals', *arrays(), label_names=('cat', 'dog'))\n"
    )
    path_before = list(sys.path)
    assert load("my_data:arrays").train_inputs.shape == (4, 3)
    named = load("my_data:named")
    assert (named.name, named.label_names) == ("animals", ("cat", "dog"))
    assert isinstance(named, DataSet)
    assert sys.path == path_before


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (None, "data wrong_data:load: ModuleNotFoundError: No module named 'wrong_data', expected a module wrong_data"),
        ("x = 1", "no load in module wrong_data, expected a function of that name"),
        ("load = 1", "load is no function, expected a function of that name"),
        ("def load(: pass", "SyntaxError: "),
        ("raise RuntimeError('at import')", "RuntimeError: at import, expected a module"),
        (
            "def load():\n    raise ValueError('two\\nlines')",
            "data wrong_data:load: ValueError: two lines, expected a fun",
        ),
        ("def load():\n    raise KeyError", "data wrong_data:load: KeyError, expected a function that returns data"),
        ("def load(name): pass", "TypeError: load() missing 1 required positional argument"),
        ("def load(): return 1, 2, 3", "a tuple of 3, expected a DataSet, or a tuple of train_inputs, train_labels"),
        ("def load(): return None", "a NoneType, expected a DataSet, or a tuple of train_inputs"),
        ("def load(): return [[1], [1, 2]], [0, 1], [1], [0]", "expected arrays of numbers"),
        ("def load(): return [[1.0]], [-3], [[1.0]], [0]", "label -3 of sample 0, expected"),
    ],
)
def test_an_own_function_that_fails_is_one_line_with_its_name(here, body, line):
    if body is not None:
        (here / "wrong_data.py").write_text(body)
    found = refusal("wrong_data:load")
    assert line in found
    assert "wrong_data:load" in found


# sources


def test_a_source_that_is_not_there_lists_what_could_be(tmp_path):
    line = refusal(tmp_path / "nowhere")
    assert "nowhere: not found, expected one of digits, FOLDER, FILE.npz" in line
    assert all(source in line for source in SOURCES)
    (tmp_path / "notes.txt").write_text("hello")
    assert "notes.txt: not a folder and not a .npz file" in refusal(tmp_path / "notes.txt")


def test_the_cache_is_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "bdfl"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache() == tmp_path / ".cache" / "bdfl"


def test_validation_samples_take_the_place_of_the_test_set(tmp_path):
    inputs, labels = np.arange(20.0).reshape(10, 2), np.arange(10) % 3
    np.savez(tmp_path / "own.npz", train_inputs=inputs, train_labels=labels, test_inputs=inputs, test_labels=labels)
    data = load(tmp_path / "own.npz", validation_samples=4)
    assert np.array_equal(data.train_inputs, inputs[:6])
    assert np.array_equal(data.test_inputs, inputs[6:])
    assert np.array_equal(data.test_labels, labels[6:])
    assert len(load(tmp_path / "own.npz", validation_samples=4, test_samples=3).test_labels) == 3
    assert "10 training samples" in refusal(tmp_path / "own.npz", validation_samples=10)
