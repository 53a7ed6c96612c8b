"""Data without decoding: the digits of scikit-learn, `.npz` files, and user functions."""

import zlib
from importlib.util import find_spec
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from bdfl.errors import require
from bdfl.learning.data_set import BadData, DataSet, make_data_set
from bdfl.learning.own_function import BadFunction, find_function, importing_from_here, show_exception

_ARRAYS = ("train_inputs", "train_labels", "test_inputs", "test_labels")
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
            missing = [name for name in _ARRAYS if name not in file.files]
            if missing:
                raise BadData(str(path), f"arrays {', '.join(file.files) or 'none'}", ", ".join(_ARRAYS))
            arrays = [file[name] for name in _ARRAYS]
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
    if not isinstance(answer, tuple) or len(answer) != len(_ARRAYS):
        found = f"a {type(answer).__name__}" + (f" of {len(answer)}" if isinstance(answer, tuple) else "")
        raise BadData(name, found, f"a DataSet, or a tuple of {', '.join(_ARRAYS)}")
    try:
        arrays = [np.asarray(array) for array in answer]
    except ValueError as error:
        raise BadData(name, str(error), "arrays of numbers") from None
    return make_data_set(name, *arrays)
