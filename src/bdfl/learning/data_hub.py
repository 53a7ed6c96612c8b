"""Data sets of the Hugging Face hub by name, through the library `datasets`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bdfl.errors import require
from bdfl.learning.data_cache import digest_sources, load_through_cache
from bdfl.learning.data_images import decode_images
from bdfl.learning.data_parquet import INPUT_COLUMNS, LABEL_COLUMNS, LOADER_VERSION, pick_column
from bdfl.learning.data_set import SPLITS, BadData, DataSet, Inputs, Labels, convert_labels, make_data_set
from bdfl.learning.own_function import show_exception
from bdfl.scenario import DataChoice

Split = Any  # a datasets.Dataset; the library has no types

_BATCH_ROWS = 1024


def load_hub(name: str, choice: DataChoice, cache: Path) -> DataSet:
    """Load the data set NAME or NAME:CONFIG, downloaded by `datasets` if necessary, decoded once."""
    require(f"hub:{name}", "datasets")
    import datasets

    repository, _, configuration = name.partition(":")
    where = f"hub:{name}"
    try:
        found = datasets.load_dataset(repository, configuration or None)
    except Exception as error:  # no network, unknown name, unknown configuration
        raise BadData(where, show_exception(error), "a data set of the hub as NAME or NAME:CONFIG") from None
    missing = [split for split in SPLITS if split not in found]
    if missing:
        raise BadData(where, f"splits {', '.join(found)}", "train and test")
    splits = {split: found[split] for split in SPLITS}
    columns = splits["train"].column_names
    input_column = pick_column(where, columns, choice.input_column, INPUT_COLUMNS, "data.input_column")
    label_column = pick_column(where, columns, choice.label_column, LABEL_COLUMNS, "data.label_column")
    for split in SPLITS:
        for column in (input_column, label_column):
            pick_column(f"{where} {split}", splits[split].column_names, column, (), "")
        splits[split] = _encoded(datasets, where, splits[split], input_column)
    # The library's fingerprints stand for the content, which the library itself keeps on disk.
    words = [LOADER_VERSION, name, input_column, label_column, *(str(splits[split]._fingerprint) for split in SPLITS)]

    def build() -> DataSet:
        labels = {split: _read_labels(f"{where} {split}", splits[split], label_column) for split in SPLITS}
        inputs = {split: _read_images(f"{where} {split}", splits[split], input_column) for split in SPLITS}
        names = getattr(splits["train"].features[label_column], "names", None)
        label_names = None if names is None else tuple(names)
        return make_data_set(
            where, inputs["train"], labels["train"], inputs["test"], labels["test"], label_names=label_names
        )

    return load_through_cache(cache, digest_sources(words), where, build)


def _encoded(datasets: Any, where: str, split: Split, column: str) -> Split:
    """Return the split with its images as encoded bytes."""
    if not isinstance(split.features[column], datasets.Image):
        raise BadData(where, f"{column} of type {type(split.features[column]).__name__}", "images")
    return split.cast_column(column, datasets.Image(decode=False))


def _read_labels(where: str, split: Split, column: str) -> Labels:
    if not len(split):
        raise BadData(where, "no rows", "at least one image")
    labels = split[column][:]
    if any(label is None for label in labels):
        raise BadData(where, f"rows without {column}", "a label in every row")
    return convert_labels(where, np.asarray(labels))


def _read_images(where: str, split: Split, column: str) -> Inputs:
    def encoded() -> Iterator[bytes | None]:
        for start in range(0, len(split), _BATCH_ROWS):
            for image in split[start : start + _BATCH_ROWS][column]:
                yield image["bytes"] if image and image["bytes"] else _read_file(image)

    return decode_images(where, encoded(), len(split))


def _read_file(image: dict[str, str | None] | None) -> bytes | None:
    """Bytes of an image stored in a separate file; None if it cannot be read."""
    path = image["path"] if image else None
    try:
        return Path(path).read_bytes() if path else None
    except OSError:
        return None
