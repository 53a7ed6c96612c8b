"""Data sets by the name given in a scenario."""

from dataclasses import replace
from pathlib import Path

from bdfl.learning.data_cache import default_cache
from bdfl.learning.data_hub import load_hub
from bdfl.learning.data_parquet import load_folder
from bdfl.learning.data_set import BadData, DataSet, make_data_set
from bdfl.learning.data_sources import load_arrays, load_digits, load_own
from bdfl.scenario import DataChoice, Normalisation
from bdfl.scenario.learning import DIGITS, HUB_PREFIX, is_function

__all__ = ["SOURCES", "BadData", "DataSet", "default_cache", "load_data", "make_data_set"]

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
    if choice.test_samples is None or choice.test_samples >= len(data.test_labels):
        return data
    used = choice.test_samples
    return replace(data, test_inputs=data.test_inputs[:used], test_labels=data.test_labels[:used])


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
