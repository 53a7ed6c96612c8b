"""Folders of Parquet files in the layout of the Hugging Face hub: images in a struct with `bytes`, integer labels.

A file belongs to a split by its name, `train-00000-of-00001.parquet`, or by its folder's, `train/0000.parquet`. Files
may lie anywhere below the folder, but all of a split in one folder: configurations of a data set are not mixed.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

from bdfl.errors import one_line, require
from bdfl.learning.data_cache import digest_sources, load_through_cache
from bdfl.learning.data_images import decode_images
from bdfl.learning.data_set import SPLITS, BadData, DataSet, Inputs, Labels, convert_labels, make_data_set
from bdfl.scenario import DataChoice

Schema: TypeAlias = Any  # pyarrow has no types
ParquetFile: TypeAlias = Any

INPUT_COLUMNS = ("img", "image", "input")
LABEL_COLUMNS = ("label", "labels")
LOADER_VERSION = "1"  # of cached data: raise it when the same files give other arrays
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})$")
_BATCH_ROWS = 1024


class _Feature(msgspec.Struct, frozen=True):
    """Metadata of a column on the hub; only label names are used."""

    names: tuple[str, ...] | None = None


class _Info(msgspec.Struct, frozen=True):
    features: dict[str, _Feature] = {}


class _HubMetadata(msgspec.Struct, frozen=True):
    info: _Info = _Info()


def load_folder(folder: Path, choice: DataChoice, cache: Path) -> DataSet:
    """Load the data set in a folder of Parquet files, decoded once and then read from the cache."""
    files = {split: _find_files(folder, split) for split in SPLITS}
    words = [LOADER_VERSION, choice.input_column or "", choice.label_column or "", str(len(files["train"]))]
    try:
        key = digest_sources(words, [*files["train"], *files["test"]])
    except OSError as error:
        raise BadData(str(error.filename or folder), str(error.strerror), "a readable Parquet file") from None
    return load_through_cache(cache, key, folder.name, lambda: _read_folder(folder.name, files, choice))


def _read_folder(name: str, files: Mapping[str, Sequence[Path]], choice: DataChoice) -> DataSet:
    opened = {split: [_open(path) for path in files[split]] for split in SPLITS}
    first_path, first = files["train"][0], opened["train"][0].schema_arrow
    input_column = pick_column(str(first_path), first.names, choice.input_column, INPUT_COLUMNS, "data.input_column")
    label_column = pick_column(str(first_path), first.names, choice.label_column, LABEL_COLUMNS, "data.label_column")
    inputs, labels = {}, {}
    for split in SPLITS:
        for path, file in zip(files[split], opened[split], strict=True):
            _validate_columns(path, file.schema_arrow, input_column, label_column)
        labels[split] = _read_labels(files[split], opened[split], label_column)  # first: cheap to reject
        inputs[split] = _read_images(files[split], opened[split], input_column)
    names = _label_names(first, label_column)
    return make_data_set(name, inputs["train"], labels["train"], inputs["test"], labels["test"], label_names=names)


def pick_column(where: str, columns: Sequence[str], wanted: str | None, usual: Sequence[str], setting: str) -> str:
    """Return the column asked for, or the first usual one present."""
    found = next((name for name in ((wanted,) if wanted else usual) if name in columns), None)
    if found is None:
        asked = wanted or f"{', '.join(usual)} or another as {setting}"
        raise BadData(where, f"columns {', '.join(columns) or 'none'}", asked)
    return found


def _find_files(folder: Path, split: str) -> list[Path]:
    """Files of a split in order of their names; all shards must be present and of one configuration."""
    inside = [path for path in sorted(folder.rglob("*.parquet")) if not _is_hidden(path.relative_to(folder))]
    by_name = [path for path in inside if re.fullmatch(rf"{split}(-.*)?", path.stem)]
    by_folder = [path for path in inside if path.parent.name == split and path.parent != folder]
    found = by_name or by_folder
    if not found:
        kind = "no Parquet files" if not inside else f"{len(inside)} Parquet files but none of {split}"
        raise BadData(str(folder), kind, f"{split}-*.parquet, in the folder or below it")
    places = sorted({str(path.parent.relative_to(folder)) for path in found})
    if len(places) > 1:
        raise BadData(
            str(folder), f"{split} data in {', '.join(places)}", "those of one configuration: give its folder"
        )
    shards = [match for path in found if (match := _SHARD.search(path.stem))]
    if shards:
        there = {int(match[1]) for match in shards}
        missing = sorted(set(range(int(shards[0][2]))) - there)
        if missing or len({match[2] for match in shards}) > 1:
            expected = f"all of {split}-00000-of-{shards[0][2]}.parquet and so on"
            raise BadData(str(folder), f"{len(found)} files of {split}", expected)
    return found


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _open(path: Path) -> ParquetFile:
    require("a Parquet file", "pyarrow.parquet")
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path)
    except (OSError, ValueError) as error:  # pyarrow's own errors derive from these
        raise BadData(str(path), _reason(error), "a whole Parquet file") from None


def _validate_columns(path: Path, schema: Schema, input_column: str, label_column: str) -> None:
    import pyarrow

    for column in (input_column, label_column):
        if column not in schema.names:
            raise BadData(str(path), f"columns {', '.join(schema.names) or 'none'}", f"{column}, as in the other files")
    image, label = schema.field(input_column).type, schema.field(label_column).type
    is_struct = pyarrow.types.is_struct(image) and image.get_field_index("bytes") >= 0
    content = image.field("bytes").type if is_struct else None
    if content is None or not (pyarrow.types.is_binary(content) or pyarrow.types.is_large_binary(content)):
        raise BadData(str(path), f"{input_column} of type {image}", "a struct with an image's encoded bytes")
    if not pyarrow.types.is_integer(label):
        raise BadData(str(path), f"{label_column} of type {label}", "whole numbers")


def _read_labels(paths: Sequence[Path], files: Sequence[ParquetFile], column: str) -> Labels:
    parts = []
    for path, file in zip(paths, files, strict=True):
        for batch in _batches(path, file, column):
            if batch.null_count:
                raise BadData(str(path), f"{batch.null_count} rows without {column}", "a label in every row")
            parts.append(convert_labels(str(path), batch.to_numpy(zero_copy_only=False)))
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _read_images(paths: Sequence[Path], files: Sequence[ParquetFile], column: str) -> Inputs:
    def encoded() -> Iterator[bytes | None]:
        for path, file in zip(paths, files, strict=True):
            for batch in _batches(path, file, column):
                yield from batch.field("bytes").to_pylist()

    num_images = sum(file.metadata.num_rows for file in files)
    if not num_images:
        raise BadData(str(paths[0]), "no rows", "at least one image")
    where = str(paths[0]) if len(paths) == 1 else f"{paths[0].parent} {paths[0].stem.partition('-')[0]}"
    return decode_images(where, encoded(), num_images)


def _batches(path: Path, file: ParquetFile, column: str) -> Iterator[Any]:
    try:
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=[column]):
            yield batch.column(0)
    except (OSError, ValueError) as error:
        raise BadData(str(path), _reason(error), "a whole Parquet file") from None


def _label_names(schema: Schema, column: str) -> tuple[str, ...] | None:
    """Label names from the hub's metadata; None if there are none."""
    try:
        metadata = msgspec.json.decode((schema.metadata or {}).get(b"huggingface", b"{}"), type=_HubMetadata)
    except msgspec.MsgspecError:
        return None
    feature = metadata.info.features.get(column)
    return feature.names if feature else None


def _reason(error: Exception) -> str:
    return one_line(error).rstrip(".")
