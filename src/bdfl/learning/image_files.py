"""Images in Parquet files and on the Hugging Face hub, decoded to arrays.

Folders have the layout of the hub: images in a struct with `bytes`, integer labels. A file belongs to a split by its
name, `train-00000-of-00001.parquet`, or by its folder's, `train/0000.parquet`. Files may lie anywhere below the folder,
but all of a split in one folder: configurations of a data set are not mixed.
"""

import io
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from bdfl.errors import one_line, require
from bdfl.learning.dataset import (
    SPLITS,
    BadData,
    DataSet,
    Inputs,
    Labels,
    convert_labels,
    digest_sources,
    load_through_cache,
    make_data_set,
)
from bdfl.plugins import show_exception
from bdfl.scenario import DataChoice

if TYPE_CHECKING:
    from PIL.Image import Image


# Decode images into one uint8 array; every image's size is checked before it is decoded.

_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # Pillow reads more formats, some by starting programs
_CHANNELS = {"1": 1, "L": 1, "P": 3, "RGB": 3, "RGBA": 3}
_MAX_SIDE = 1024
_MAX_BYTES = 16 * 2**30  # of a decoded split
_CHUNK = 256  # images decoded by a thread per task


def decode_images(where: str, encoded: Iterable[bytes | None], num_images: int) -> NDArray[np.uint8]:
    """Decode all images, (images, height, width, channels): one channel for grey images, three for others.

    Every image must have the shape of the first. Raises `BadData` with the first that does not.
    """
    require("decoding images", "PIL.Image")
    from PIL.Image import DecompressionBombWarning

    images = iter(encoded)
    first = next(images, None)
    shape = _peek(f"{where} image 0", first)
    if num_images * int(np.prod(shape)) > _MAX_BYTES:
        found = f"{num_images} images of {_show(shape)}"
        raise BadData(where, found, f"at most {_MAX_BYTES // 2**30} GiB together: make them smaller first")
    decoded = np.empty((num_images, *shape), dtype=np.uint8)
    num_decoded = 0

    def decode(start: int, chunk: list[bytes | None]) -> None:
        for place, data in enumerate(chunk, start=start):
            decoded[place] = _decode(f"{where} image {place}", data, shape)

    with warnings.catch_warnings(), ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
        warnings.simplefilter("error", DecompressionBombWarning)
        started, every = [], chain([first], images)
        while chunk := list(islice(every, _CHUNK)):
            started.append(pool.submit(decode, num_decoded, chunk))
            num_decoded += len(chunk)
        for task in started:
            task.result()
    if num_decoded != num_images:
        raise BadData(where, f"{num_decoded} images", f"{num_images}")
    return decoded


def _peek(where: str, data: bytes | None) -> tuple[int, int, int]:
    """Height, width and channels, read from an image's header."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sizes that Pillow warns of are rejected
        return _shape_of(where, _open_image(where, data))


def _open_image(where: str, data: bytes | None) -> "Image":
    from PIL import Image

    if data is None:
        raise BadData(where, "no bytes", "an encoded image")
    try:
        return Image.open(io.BytesIO(data), formats=_FORMATS)
    except Exception as error:  # Pillow's readers raise almost anything on broken bytes
        raise BadData(where, f"not readable: {_image_reason(error)}", f"an image as {', '.join(_FORMATS)}") from None


def _shape_of(where: str, image: "Image") -> tuple[int, int, int]:
    if image.mode not in _CHANNELS:
        raise BadData(where, f"an image of mode {image.mode}", f"one of {', '.join(_CHANNELS)}")
    width, height = image.size
    if not 1 <= min(width, height) <= max(width, height) <= _MAX_SIDE:
        raise BadData(where, f"{height}x{width} pixels", f"sides from 1 to {_MAX_SIDE}")
    return height, width, _CHANNELS[image.mode]


def _decode(where: str, data: bytes | None, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    image = _open_image(where, data)
    found = _shape_of(where, image)
    if found != shape:
        raise BadData(where, f"an image of {_show(found)}", f"{_show(shape)}, as the first image of its set has")
    mode = "L" if shape[2] == 1 else "RGB"
    try:
        pixels = np.asarray(image if image.mode == mode else image.convert(mode))
    except Exception as error:
        raise BadData(where, f"does not decode: {_image_reason(error)}", "a whole image") from None
    return pixels.reshape(shape)


def _image_reason(error: Exception) -> str:
    text = str(error)
    return "unknown format" if "cannot identify" in text else text or type(error).__name__


def _show(shape: tuple[int, int, int]) -> str:
    height, width, channels = shape
    return f"{height}x{width} pixels and {channels} channel{'s' if channels > 1 else ''}"


Schema: TypeAlias = Any  # pyarrow has no types
ParquetFile: TypeAlias = Any

INPUT_COLUMNS = ("img", "image", "input")
LABEL_COLUMNS = ("label", "labels")
LOADER_VERSION = "1"  # of cached data: raise it when the same files give other arrays
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})$")
_BATCH_ROWS = 1024


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
    input_column, label_column = _pick_columns(str(first_path), first.names, choice)
    inputs, labels = {}, {}
    for split in SPLITS:
        for path, file in zip(files[split], opened[split], strict=True):
            _validate_columns(path, file.schema_arrow, input_column, label_column)
        labels[split] = _read_parquet_labels(files[split], opened[split], label_column)  # first: cheap to reject
        inputs[split] = _read_parquet_images(files[split], opened[split], input_column)
    names = _label_names(first, label_column)
    return make_data_set(name, inputs["train"], labels["train"], inputs["test"], labels["test"], label_names=names)


def _pick_columns(where: str, columns: Sequence[str], choice: DataChoice) -> tuple[str, str]:
    """Return the columns of the images and of the labels."""
    return (
        _pick_column(where, columns, choice.input_column, INPUT_COLUMNS, "data.input_column"),
        _pick_column(where, columns, choice.label_column, LABEL_COLUMNS, "data.label_column"),
    )


def _pick_column(where: str, columns: Sequence[str], wanted: str | None, usual: Sequence[str], setting: str) -> str:
    """Return the column asked for, or the first usual one present."""
    found = next((name for name in ((wanted,) if wanted else usual) if name in columns), None)
    if found is None:
        asked = wanted or f"{', '.join(usual)} or another as {setting}"
        raise BadData(where, f"columns {', '.join(columns) or 'none'}", asked)
    return found


def _find_files(folder: Path, split: str) -> list[Path]:
    """Files of a split in order of their names; all shards must be present and of one configuration."""
    every = sorted(folder.rglob("*.parquet"))
    inside = [path for path in every if "/." not in f"/{path.relative_to(folder).as_posix()}"]  # none that is hidden
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


def _read_parquet_labels(paths: Sequence[Path], files: Sequence[ParquetFile], column: str) -> Labels:
    parts = []
    for path, file in zip(paths, files, strict=True):
        for batch in _batches(path, file, column):
            if batch.null_count:
                raise BadData(str(path), f"{batch.null_count} rows without {column}", "a label in every row")
            parts.append(convert_labels(str(path), batch.to_numpy(zero_copy_only=False)))
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _read_parquet_images(paths: Sequence[Path], files: Sequence[ParquetFile], column: str) -> Inputs:
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
        metadata = msgspec.json.decode((schema.metadata or {}).get(b"huggingface", b"{}"))
        return msgspec.convert(metadata["info"]["features"][column]["names"], tuple[str, ...])
    except (msgspec.MsgspecError, KeyError, TypeError):
        return None


def _reason(error: Exception) -> str:
    return one_line(error).rstrip(".")


# Data sets of the Hugging Face hub by name, through the library `datasets`.

Split = Any  # a datasets.Dataset; the library has no types


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
    input_column, label_column = _pick_columns(where, splits["train"].column_names, choice)
    for split in SPLITS:
        for column in (input_column, label_column):
            _pick_column(f"{where} {split}", splits[split].column_names, column, (), "")
        splits[split] = _encoded(datasets, where, splits[split], input_column)
    # The library's fingerprints stand for the content, which the library itself keeps on disk.
    words = [LOADER_VERSION, name, input_column, label_column, *(str(splits[split]._fingerprint) for split in SPLITS)]

    def build() -> DataSet:
        labels = {split: _read_hub_labels(f"{where} {split}", splits[split], label_column) for split in SPLITS}
        inputs = {split: _read_hub_images(f"{where} {split}", splits[split], input_column) for split in SPLITS}
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


def _read_hub_labels(where: str, split: Split, column: str) -> Labels:
    if not len(split):
        raise BadData(where, "no rows", "at least one image")
    labels = split[column][:]
    if any(label is None for label in labels):
        raise BadData(where, f"rows without {column}", "a label in every row")
    return convert_labels(where, np.asarray(labels))


def _read_hub_images(where: str, split: Split, column: str) -> Inputs:
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
