"""Weights as vectors and as bytes."""

import hashlib
import json
import struct

import numpy as np
import pytest
from safetensors.numpy import save

from bdfl.learning.weights import InvalidWeights, Layout, decode_weights, encode_weights

LAYOUT = Layout(("2.weight", "1.bias", "scale"), ((2, 3), (4,), ()))
WEIGHTS = np.arange(11, dtype=np.float32) / 7


def file_of(header, payload):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + payload


def changed(data, before, after):
    assert len(before) == len(after)
    assert before in data
    return data.replace(before, after)


def test_a_layout_counts_its_entries():
    assert LAYOUT.sizes == (6, 4, 1)
    assert LAYOUT.num_parameters == 11
    assert Layout((), ()).num_parameters == 0


def test_tensors_stand_one_after_the_other():
    parts = dict(LAYOUT.split(WEIGHTS))
    assert parts["2.weight"].tolist() == WEIGHTS[:6].reshape(2, 3).tolist()
    assert parts["1.bias"].tolist() == WEIGHTS[6:10].tolist()
    assert parts["scale"].shape == ()


def test_bytes_carry_the_weights_there_and_back():
    data = encode_weights(WEIGHTS, LAYOUT)
    assert decode_weights(data, LAYOUT).tobytes() == WEIGHTS.tobytes()
    assert encode_weights(decode_weights(data, LAYOUT), LAYOUT) == data


def test_the_bytes_are_these():
    digest = hashlib.sha256(encode_weights(WEIGHTS, LAYOUT)).hexdigest()
    assert digest == "494c0344368e9a3844824f51cdd61da4caf20ab09e1a8ad7f70152e6843ffae6"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_neither_written_nor_read(value):
    wrong = WEIGHTS.copy()
    wrong[3] = value
    with pytest.raises(InvalidWeights, match=r"^weights: 1 of 11 are not finite$"):
        encode_weights(wrong, LAYOUT)
    data = changed(encode_weights(WEIGHTS, LAYOUT), WEIGHTS[3].tobytes(), wrong[3].tobytes())
    with pytest.raises(InvalidWeights, match=r"^weights: 1 of 11 are not finite$"):
        decode_weights(data, LAYOUT)


def test_every_truncation_and_extension_is_refused():
    data = encode_weights(WEIGHTS, LAYOUT)
    for wrong in [data[:length] for length in range(len(data))] + [data + b"\0"]:
        with pytest.raises(InvalidWeights, match=f"^weights: {len(wrong)} bytes given, expected {len(data)}"):
            decode_weights(wrong, LAYOUT)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"1.bias", b"1.base"),
        (b"[2,3]", b"[3,2]"),
        (b'"F32","shape":[4]', b'"I32","shape":[4]'),
        (b'{"', b"xx"),
        (b'"dtype":"F32","shape":[4]', b'"shape":[4],"dtype":"F32"'),  # safetensors too, and of the same meaning
    ],
)
def test_any_other_header_is_refused_in_one_line(before, after):
    data = encode_weights(WEIGHTS, LAYOUT)
    with pytest.raises(InvalidWeights, match="another header given") as caught:
        decode_weights(changed(data, before, after), LAYOUT)
    assert "\n" not in str(caught.value)


def test_flipping_any_bit_of_the_header_is_refused():
    data = encode_weights(WEIGHTS, LAYOUT)
    header_end = 8 + struct.unpack("<Q", data[:8])[0]
    for place in range(header_end):
        for bit in range(8):
            wrong = bytearray(data)
            wrong[place] ^= 1 << bit
            with pytest.raises(InvalidWeights):
                decode_weights(bytes(wrong), LAYOUT)


@pytest.mark.parametrize("weights", [WEIGHTS[:-1], WEIGHTS.astype(float), WEIGHTS[:, None]])
def test_a_vector_of_another_model_is_not_written(weights):
    with pytest.raises(InvalidWeights, match=r"expected float32 of shape \(11,\)"):
        encode_weights(weights, LAYOUT)


def test_a_huge_claimed_header_is_refused_before_anything_is_read():
    with pytest.raises(InvalidWeights, match="bytes given"):
        decode_weights(file_of({"x": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}, b""), LAYOUT)


@pytest.mark.parametrize(
    "layout",
    [LAYOUT, Layout((), ()), Layout(("b", "a"), ((0,), (3, 0))), Layout(("é", "w"), ((2,), (1, 2)))],
    ids=["mixed", "none", "empty-tensors", "other-letters"],
)
def test_files_are_those_that_safetensors_itself_writes_and_reads(layout):
    weights = (np.arange(layout.num_parameters) / 7).astype(np.float32)
    data = encode_weights(weights, layout)
    assert data == save(dict(layout.split(weights)))
    assert decode_weights(data, layout).tobytes() == weights.tobytes()
