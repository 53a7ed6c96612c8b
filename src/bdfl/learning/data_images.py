"""Decode images into one uint8 array; every image's size is checked before it is decoded."""

import io
import os
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bdfl.errors import require
from bdfl.learning.data_set import BadData

if TYPE_CHECKING:
    from PIL.Image import Image

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
        started = []
        for chunk in _chunks(_put_back(first, images)):
            started.append(pool.submit(decode, num_decoded, chunk))
            num_decoded += len(chunk)
        for task in started:
            task.result()
    if num_decoded != num_images:
        raise BadData(where, f"{num_decoded} images", f"{num_images}")
    return decoded


def _put_back(first: bytes | None, rest: Iterator[bytes | None]) -> Iterator[bytes | None]:
    yield first
    yield from rest


def _chunks(images: Iterator[bytes | None]) -> Iterator[list[bytes | None]]:
    while chunk := list(islice(images, _CHUNK)):
        yield chunk


def _peek(where: str, data: bytes | None) -> tuple[int, int, int]:
    """Height, width and channels, read from an image's header."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sizes that Pillow warns of are rejected
        return _shape_of(where, _open(where, data))


def _open(where: str, data: bytes | None) -> "Image":
    from PIL import Image

    if data is None:
        raise BadData(where, "no bytes", "an encoded image")
    try:
        return Image.open(io.BytesIO(data), formats=_FORMATS)
    except Exception as error:  # Pillow's readers raise almost anything on broken bytes
        raise BadData(where, f"not readable: {_reason(error)}", f"an image as {', '.join(_FORMATS)}") from None


def _shape_of(where: str, image: "Image") -> tuple[int, int, int]:
    if image.mode not in _CHANNELS:
        raise BadData(where, f"an image of mode {image.mode}", f"one of {', '.join(_CHANNELS)}")
    width, height = image.size
    if not 1 <= min(width, height) <= max(width, height) <= _MAX_SIDE:
        raise BadData(where, f"{height}x{width} pixels", f"sides from 1 to {_MAX_SIDE}")
    return height, width, _CHANNELS[image.mode]


def _decode(where: str, data: bytes | None, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    image = _open(where, data)
    found = _shape_of(where, image)
    if found != shape:
        raise BadData(where, f"an image of {_show(found)}", f"{_show(shape)}, as the first image of its set has")
    mode = "L" if shape[2] == 1 else "RGB"
    try:
        pixels = np.asarray(image if image.mode == mode else image.convert(mode))
    except Exception as error:
        raise BadData(where, f"does not decode: {_reason(error)}", "a whole image") from None
    return pixels.reshape(shape)


def _reason(error: Exception) -> str:
    text = str(error)
    return "unknown format" if "cannot identify" in text else text or type(error).__name__


def _show(shape: tuple[int, int, int]) -> str:
    height, width, channels = shape
    return f"{height}x{width} pixels and {channels} channel{'s' if channels > 1 else ''}"
