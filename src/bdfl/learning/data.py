"""Loading of data: digits, arrays in a file, image folders, the hub, or a function of the user."""

import zlib
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from bdfl.errors import require
from bdfl.learning.dataset import (
    ARRAYS,
    BadData as BadData,
    DataSet as DataSet,
    default_cache as default_cache,
    make_data_set as make_data_set,
)
from bdfl.learning.image_files import load_folder, load_hub
from bdfl.plugins import BadFunction, find_function, importing_from_here, show_exception
from bdfl.scenario import DataChoice, Normalisation
from bdfl.scenario.schema_learning import DIGITS, HUB_PREFIX, is_function

# Data without decoding: the digits of scikit-learn, `.npz` files, and user functions.

# Raised by numpy for a file that is truncated, damaged, of another type or larger than memory.
_UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    KeyError,
    TypeError,
    MemoryError,
    NotImplementedError,
    BadZipFile,
    zlib.error,
)
_DIGITS_FILE = Path("datasets", "data", "digits.csv.gz")  # in the folder of scikit-learn: 64 pixels and a label a line
_TEST_EVERY = 5  # every fifth digit of a class is a test sample
_GREY_STEP = 15  # digits have 17 shades: 0 to 16 become 0 to 240 without loss


def load_digits() -> DataSet:
    """Load 1,797 handwritten digits of 8x8 pixels: four fifths of every class to train, one fifth to test."""
    rows = _read_digits()
    images = (rows[:, :-1].reshape(-1, 8, 8, 1) * _GREY_STEP).astype(np.uint8)
    labels = rows[:, -1].astype(np.int64)
    is_test = np.zeros(len(labels), dtype=np.bool_)
    for label in range(10):
        is_test[np.flatnonzero(labels == label)[_TEST_EVERY - 1 :: _TEST_EVERY]] = True
    return make_data_set("digits", images[~is_test], labels[~is_test], images[is_test], labels[is_test])


def _read_digits() -> NDArray[np.float64]:
    """Pixels and labels, (digits, 65), from scikit-learn's file: importing it would take 100 MB and a second."""
    library = find_spec("sklearn")
    for folder in [] if library is None else library.submodule_search_locations or ():
        if (path := Path(folder) / _DIGITS_FILE).is_file():
            return np.loadtxt(path, delimiter=",")
    require("the data set digits", "sklearn.datasets")
    from sklearn.datasets import load_digits

    digits = load_digits()
    return np.column_stack([digits.data, digits.target])


def load_arrays(path: Path) -> DataSet:
    """Load the data set in a `.npz` file with the four arrays under their names."""
    try:
        with path.open("rb") as content, np.load(content, allow_pickle=False) as file:
            missing = [name for name in ARRAYS if name not in file.files]
            if missing:
                raise BadData(str(path), f"arrays {', '.join(file.files) or 'none'}", ", ".join(ARRAYS))
            arrays = [file[name] for name in ARRAYS]
    except _UNREADABLE as error:
        raise BadData(str(path), f"not readable: {error}", "a .npz file of plain arrays") from None
    return make_data_set(path.stem, *arrays)


def load_own(name: str) -> DataSet:
    """Load the data set from a user's function, which returns a `DataSet` or its four arrays."""
    try:
        function = find_function(name)
    except BadFunction as error:
        raise BadData(name, error.found, error.expected) from error
    try:
        with importing_from_here():
            answer = function()
    except Exception as error:  # a user's function may raise anything
        raise BadData(name, show_exception(error), "a function that returns data") from error
    if isinstance(answer, DataSet):
        return answer
    if not isinstance(answer, tuple) or len(answer) != len(ARRAYS):
        found = f"a {type(answer).__name__}" + (f" of {len(answer)}" if isinstance(answer, tuple) else "")
        raise BadData(name, found, f"a DataSet, or a tuple of {', '.join(ARRAYS)}")
    try:
        arrays = [np.asarray(array) for array in answer]
    except ValueError as error:
        raise BadData(name, str(error), "arrays of numbers") from None
    return make_data_set(name, *arrays)


# Data sets by the name given in a scenario.

SOURCES = {
    "digits": "1,797 handwritten digits, 8x8, with scikit-learn: nothing to download",
    "FOLDER": "Parquet files as on the hub: train-*.parquet and test-*.parquet",
    "FILE.npz": "arrays train_inputs, train_labels, test_inputs, test_labels",
    "hub:NAME[:CONFIG]": "a data set of the Hugging Face hub, such as hub:cifar10",
    "module:function": "your own function that returns the four arrays or a DataSet",
}

_MOST_TIMES = (
    10  # as wide as agreed may inputs be that are not normalised, and as narrow: pixels to 255 instead of to 1
)


def load_data(choice: DataChoice, *, cache: Path | None = None) -> DataSet:
    """Load the data set named in a scenario; images are memory-mapped from the folder `cache`, or the user's cache.

    Raises `BadData` with a one-line reason.
    """
    data = _load_source(choice, default_cache() if cache is None else cache)
    _validate_inputs(data, choice)
    if choice.validation_samples is not None:
        data = _hold_out(data, choice.validation_samples)
    if choice.test_samples is None or choice.test_samples >= len(data.test_labels):
        return data
    used = choice.test_samples
    return replace(data, test_inputs=data.test_inputs[:used], test_labels=data.test_labels[:used])


def _hold_out(data: DataSet, count: int) -> DataSet:
    """Evaluate on the last training samples in place of the test set, and train on the others."""
    kept = len(data.train_labels) - count
    if kept < 1:
        found = f"{len(data.train_labels)} training samples"
        raise BadData(data.name, found, f"more than {count}, as data.validation_samples holds out so many")
    return replace(
        data,
        train_inputs=data.train_inputs[:kept],
        train_labels=data.train_labels[:kept],
        test_inputs=data.train_inputs[kept:],
        test_labels=data.train_labels[kept:],
    )


def _load_source(choice: DataChoice, cache: Path) -> DataSet:
    source = choice.source
    if source == DIGITS:
        return load_digits()
    if source.startswith(HUB_PREFIX):
        return load_hub(source.removeprefix(HUB_PREFIX), choice, cache)
    if is_function(source):
        return load_own(source)
    path = Path(source)
    if path.is_dir():
        return load_folder(path, choice, cache)
    if path.is_file() and path.suffix == ".npz":
        return load_arrays(path)
    found = "not a folder and not a .npz file" if path.exists() else "not found"
    raise BadData(source, found, f"one of {', '.join(SOURCES)}")


def _validate_inputs(data: DataSet, choice: DataChoice) -> None:
    """Raise `BadData` unless the inputs match the scenario's `data.inputs` and `data.input_range`."""
    if choice.inputs is None:
        return
    if data.inputs_form != choice.inputs:
        advice = f"{choice.inputs}, as data.inputs says: convert them, or agree on a scenario for data like these"
        raise BadData(data.name, f"inputs {data.inputs_form}", advice)
    low, high = data.input_range
    if low == high:
        raise BadData(data.name, f"every value of the inputs is {low:g}", "inputs that differ from each other")
    if choice.input_range is None or choice.normalise is not Normalisation.NONE:
        return
    least, most = choice.input_range
    width = most - least
    if high - low < width / _MOST_TIMES or low < least - _MOST_TIMES * width or high > most + _MOST_TIMES * width:
        advice = f"about {least:g} to {most:g}, as data.input_range says: scale them as the others do"
        raise BadData(data.name, f"values {low:g} to {high:g}", advice)
