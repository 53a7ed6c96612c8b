"""Wrong encodings, made from right ones with knowledge of their structure; MessagePack is read here by hand.

A mutation takes an encoding apart into its elements and changes, moves, drops or repeats one of them, writes it in
another form or as another type, claims a wrong length, or damages the bytes. Nothing here imports what is tested.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from random import Random

_LIMITS = (0, 1, -1, 127, 128, 255, 256, 4095, 4096, 10_000, 10_001, 2**16 - 1, 2**16, 2**31, 2**32 - 1, 2**32)
INTEGERS = (*_LIMITS, 2**53, 2**62, 2**63 - 2, 2**63 - 1, 2**63, 2**64 - 1, -32, -33, -128, -129, -(2**31), -(2**63))
_HUGE = (b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff")
_LARGE = (b"\xdc\xff\xff", b"\xc5\xff\xff", b"\xda\xff\xff", b"\xde\xff\xff", b"\xc9\xff\xff\xff\xff\x01")
_OTHER_TYPES = (
    b"\xc0",  # nil
    b"\xc2",
    b"\xc3",
    b"\x00",
    b"\xff",
    b"\xca\x7f\xc0\x00\x00",  # NaN in 32 bits
    b"\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00",  # 1.0
    b"\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00",  # infinity
    b"\xa0",  # empty text
    b"\xa3two",
    b"\xa2\xff\xfe",  # not UTF-8
    b"\xc4\x00",  # empty bytes
    b"\x90",  # empty array
    b"\x80",  # empty map
    b"\x81\xa1a\x01",
    b"\xd6\xff\x00\x00\x00\x00",  # a timestamp
    b"\xd4\x05\x00",  # an extension
    b"\xc1",  # never used
)


class Form(Enum):
    """Kind of an element of an encoding."""

    NUMBER = auto()
    BYTES = auto()
    TEXT = auto()
    ARRAY = auto()
    OTHER = auto()  # true, false, nil


@dataclass(frozen=True)
class Element:
    """A part of an encoding that is a value by itself: bytes `start` to `end`, the content from `content` on."""

    form: Form
    start: int
    content: int
    end: int
    value: int  # of a number
    children: tuple[int, ...]  # places of an array's elements in the list of all


def read_elements(data: bytes) -> list[Element]:
    """Every element of a well-formed encoding, outer ones before those inside; integers, bytes, text, arrays only."""
    found: list[Element] = []
    assert _read(data, 0, found) == len(data)
    return found


def _read(data: bytes, start: int, found: list[Element]) -> int:
    place = len(found)
    found.append(Element(Form.OTHER, start, start, start + 1, 0, ()))  # until it is known
    first = data[start]
    if first in (0xC0, 0xC2, 0xC3):
        return start + 1
    if first <= 0x7F or first >= 0xE0:
        found[place] = Element(Form.NUMBER, start, start, start + 1, first if first <= 0x7F else first - 256, ())
        return start + 1
    if 0xCC <= first <= 0xD3:
        code = "BHIQbhiq"[first - 0xCC]
        end = start + 1 + struct.calcsize(code)
        found[place] = Element(
            Form.NUMBER, start, start + 1, end, struct.unpack(f">{code}", data[start + 1 : end])[0], ()
        )
        return end
    form, length, content = _read_head(data, start)
    if form is not Form.ARRAY:
        found[place] = Element(form, start, content, content + length, 0, ())
        return content + length
    children, end = [], content
    for _ in range(length):
        children.append(len(found))
        end = _read(data, end, found)
    found[place] = Element(form, start, content, end, 0, tuple(children))
    return end


def _read_head(data: bytes, start: int) -> tuple[Form, int, int]:
    first = data[start]
    if 0x90 <= first <= 0x9F:
        return Form.ARRAY, first & 0x0F, start + 1
    if 0xA0 <= first <= 0xBF:
        return Form.TEXT, first & 0x1F, start + 1
    form, width = {
        0xC4: (Form.BYTES, 1),
        0xC5: (Form.BYTES, 2),
        0xC6: (Form.BYTES, 4),
        0xD9: (Form.TEXT, 1),
        0xDA: (Form.TEXT, 2),
        0xDB: (Form.TEXT, 4),
        0xDC: (Form.ARRAY, 2),
        0xDD: (Form.ARRAY, 4),
    }[first]
    return form, int.from_bytes(data[start + 1 : start + 1 + width], "big"), start + 1 + width


def write_integer(value: int) -> bytes:
    """The shortest encoding of -2^63 to 2^64 - 1."""
    if 0 <= value <= 0x7F:
        return bytes([value])
    if -32 <= value < 0:
        return bytes([256 + value])
    return next(wide for wide in _wide_integers(value))


def write_head(form: Form, length: int) -> bytes:
    """The shortest head of so many bytes or elements."""
    if form is Form.ARRAY and length < 16:
        return bytes([0x90 + length])
    if form is Form.TEXT and length < 32:
        return bytes([0xA0 + length])
    return next(iter(_wide_heads(form, length)))


def _wide_integers(value: int) -> list[bytes]:
    codes = "BHIQ" if value >= 0 else "bhiq"
    marks = (0xCC, 0xCD, 0xCE, 0xCF) if value >= 0 else (0xD0, 0xD1, 0xD2, 0xD3)
    sizes = (8, 16, 32, 64)
    fits = [(mark, code) for mark, code, bits in zip(marks, codes, sizes, strict=True) if -(2 ** (bits - 1)) <= value]
    fits = [(mark, code) for mark, code in fits if value < 0 or value < 2 ** (8 * struct.calcsize(code))]
    return [bytes([mark]) + struct.pack(f">{code}", value) for mark, code in fits]


def _wide_heads(form: Form, length: int) -> list[bytes]:
    marks = {
        Form.BYTES: ((0xC4, 1), (0xC5, 2), (0xC6, 4)),
        Form.TEXT: ((0xD9, 1), (0xDA, 2), (0xDB, 4)),
        Form.ARRAY: ((0xDC, 2), (0xDD, 4)),
    }[form]
    return [bytes([mark]) + length.to_bytes(width, "big") for mark, width in marks if length < 256**width]


class Mutator:
    """Endless mutations of a few encodings of one kind; the same for the same seed."""

    def __init__(self, encodings: Sequence[bytes], seed: int) -> None:
        self._random = Random(seed)
        self._parsed = [(data, read_elements(data)) for data in encodings]
        self._spare = [data[element.start : element.end] for data, elements in self._parsed for element in elements]
        self._by_form = [
            {form: [element for element in elements if element.form is form] for form in Form}
            for _, elements in self._parsed
        ]

    def mutate(self) -> tuple[bytes, bytes]:
        """An encoding and what became of it; sometimes, by chance, the same."""
        place = int(self._random.random() * len(self._parsed))
        data, _ = self._parsed[place]
        change = _CHANGES[int(self._random.random() * len(_CHANGES))]
        return data, change(self, place)

    def _pick(self, items: Sequence[object]) -> object:
        return items[int(self._random.random() * len(items))]

    def _element(self, place: int, form: Form | None = None) -> Element:
        """Any element, or one of a form where there is one."""
        elements = self._parsed[place][1] if form is None else self._by_form[place][form]
        found = self._pick(elements or self._parsed[place][1])
        assert isinstance(found, Element)
        return found

    def _array(self, place: int, least: int) -> Element | None:
        """An array with at least so many elements, if there is one."""
        arrays = [element for element in self._by_form[place][Form.ARRAY] if len(element.children) >= least]
        return self._pick(arrays) if arrays else None  # type: ignore[return-value]

    def _replaced(self, place: int, element: Element, content: bytes) -> bytes:
        data = self._parsed[place][0]
        return b"".join((data[: element.start], content, data[element.end :]))

    def _children(self, place: int, array: Element) -> list[bytes]:
        data, elements = self._parsed[place]
        return [data[elements[child].start : elements[child].end] for child in array.children]

    def _rebuilt(self, place: int, array: Element, children: Sequence[bytes]) -> bytes:
        return self._replaced(place, array, write_head(Form.ARRAY, len(children)) + b"".join(children))

    # Damage

    def flip_bit(self, place: int) -> bytes:
        data = bytearray(self._parsed[place][0])
        bit = int(self._random.random() * 8 * len(data))
        data[bit // 8] ^= 1 << bit % 8
        return bytes(data)

    def cut(self, place: int) -> bytes:
        data = self._parsed[place][0]
        return data[: int(self._random.random() * len(data))]

    def lengthen(self, place: int) -> bytes:
        data = self._parsed[place][0]
        return data + self._random.randbytes(1 + int(self._random.random() * 8))

    def scramble(self, place: int) -> bytes:
        data, start = self._parsed[place][0], int(self._random.random() * len(self._parsed[place][0]))
        noise = self._random.randbytes(1 + int(self._random.random() * 16))
        return data[:start] + noise + data[start + len(noise) :]

    def invent(self, place: int) -> bytes:
        return self._random.randbytes(int(self._random.random() * 64))

    # Elements of arrays

    def swap_elements(self, place: int) -> bytes:
        array = self._array(place, 2)
        if array is None:
            return self.flip_bit(place)
        children = self._children(place, array)
        one, other = self._random.sample(range(len(children)), 2)
        children[one], children[other] = children[other], children[one]
        return self._rebuilt(place, array, children)

    def repeat_element(self, place: int) -> bytes:
        array = self._array(place, 1)
        if array is None:
            return self.lengthen(place)
        children = self._children(place, array)
        one = int(self._random.random() * len(children))
        return self._rebuilt(place, array, [*children[: one + 1], *children[one:]])

    def drop_element(self, place: int) -> bytes:
        array = self._array(place, 1)
        if array is None:
            return self.cut(place)
        children = self._children(place, array)
        del children[int(self._random.random() * len(children))]
        return self._rebuilt(place, array, children)

    def empty_array(self, place: int) -> bytes:
        return self._replaced(place, self._element(place, Form.ARRAY), b"\x90")

    def insert_element(self, place: int) -> bytes:
        array = self._element(place, Form.ARRAY)
        children = self._children(place, array)
        extra = self._pick(self._spare)
        assert isinstance(extra, bytes)
        children.insert(int(self._random.random() * (len(children) + 1)), extra)
        return self._rebuilt(place, array, children)

    def miscount_elements(self, place: int) -> bytes:
        array = self._element(place, Form.ARRAY)
        wrong = len(array.children) + (1 if self._random.random() < 0.5 or not array.children else -1)
        data = self._parsed[place][0]
        return data[: array.start] + write_head(Form.ARRAY, wrong) + data[array.content :]

    # Values

    def swap_with_spare(self, place: int) -> bytes:
        spare = self._pick(self._spare)
        assert isinstance(spare, bytes)
        return self._replaced(place, self._element(place), spare)

    def change_type(self, place: int) -> bytes:
        other = self._pick(_OTHER_TYPES)
        assert isinstance(other, bytes)
        return self._replaced(place, self._element(place), other)

    def limit_number(self, place: int) -> bytes:
        number = self._pick(INTEGERS)
        assert isinstance(number, int)
        return self._replaced(place, self._element(place, Form.NUMBER), write_integer(number))

    def nudge_number(self, place: int) -> bytes:
        element = self._element(place, Form.NUMBER)
        value = element.value + (1 if self._random.random() < 0.5 else -1)
        return self._replaced(place, element, write_integer(max(-(2**63), min(value, 2**64 - 1))))

    def widen_number(self, place: int) -> bytes:
        element = self._element(place, Form.NUMBER)
        wide = _wide_integers(element.value)
        if -(2**63) <= element.value < 2**63:
            wide.append(b"\xd3" + struct.pack(">q", element.value))
        return self._replaced(place, element, self._pick(wide))  # type: ignore[arg-type]

    def widen_head(self, place: int) -> bytes:
        element = self._element(place, Form.ARRAY if self._random.random() < 0.5 else Form.BYTES)
        if element.form not in (Form.ARRAY, Form.BYTES, Form.TEXT):
            return self.widen_number(place)
        data = self._parsed[place][0]
        length = len(element.children) if element.form is Form.ARRAY else element.end - element.content
        head = self._pick(_wide_heads(element.form, length))
        assert isinstance(head, bytes)
        return data[: element.start] + head + data[element.content :]

    def swap_bytes_and_text(self, place: int) -> bytes:
        element = self._element(place, Form.BYTES if self._random.random() < 0.5 else Form.TEXT)
        other = Form.TEXT if element.form is Form.BYTES else Form.BYTES
        content = self._parsed[place][0][element.content : element.end]
        return self._replaced(place, element, write_head(other, len(content)) + content)

    def change_bytes(self, place: int) -> bytes:
        """Bytes of another content or length, as a forged digest or signature would be."""
        element = self._element(place, Form.BYTES)
        if element.form is not Form.BYTES:
            return self.nudge_number(place)
        content = self._parsed[place][0][element.content : element.end]
        choice = int(self._random.random() * 5)
        changed = (
            bytes(len(content)),
            self._random.randbytes(len(content)),
            content[:-1],
            content + b"\x00",
            content[::-1],
        )[choice]
        return self._replaced(place, element, write_head(Form.BYTES, len(changed)) + changed)

    def change_text(self, place: int) -> bytes:
        element = self._element(place, Form.TEXT)
        if element.form is not Form.TEXT:
            return self.change_type(place)
        content = self._parsed[place][0][element.content : element.end]
        changed = (b"", content[:-1], content + b"x", b"x" * 201, b"\xc0\x80", "\u00e9".encode() * 100)[
            int(self._random.random() * 6)
        ]
        return self._replaced(place, element, write_head(Form.TEXT, len(changed)) + changed)

    # Claims that cost memory or time

    def claim_much(self, place: int) -> bytes:
        """A head that claims four billion elements or bytes, before what was there or instead of it."""
        element = self._element(place)
        head = self._pick(_HUGE if self._random.random() < 0.7 else _LARGE)
        assert isinstance(head, bytes)
        data = self._parsed[place][0]
        return data[: element.start] + head + data[element.content if self._random.random() < 0.5 else element.end :]

    def nest_deeply(self, place: int) -> bytes:
        depth = (2, 50, 600, 3000)[int(self._random.random() * 4)]
        opening = b"\x91" if self._random.random() < 0.7 else b"\x81\xa1k"
        return self._replaced(place, self._element(place), opening * depth + b"\x00")

    def repeat_often(self, place: int) -> bytes:
        """An array with one element too many for the limits, or nearly."""
        array = self._array(place, 1)
        if array is None or self._random.random() < 0.95:  # dear: rarely
            return self.repeat_element(place)
        child = self._children(place, array)[0]
        count = min(4097, 100_000 // len(child) + 17)
        return self._rebuilt(place, array, [child] * count)


Change = Callable[[Mutator, int], bytes]
_CHANGES: tuple[Change, ...] = (
    Mutator.flip_bit,
    Mutator.cut,
    Mutator.lengthen,
    Mutator.scramble,
    Mutator.invent,
    Mutator.swap_elements,
    Mutator.repeat_element,
    Mutator.drop_element,
    Mutator.empty_array,
    Mutator.insert_element,
    Mutator.miscount_elements,
    Mutator.swap_with_spare,
    Mutator.change_type,
    Mutator.limit_number,
    Mutator.nudge_number,
    Mutator.widen_number,
    Mutator.widen_head,
    Mutator.swap_bytes_and_text,
    Mutator.change_bytes,
    Mutator.change_text,
    Mutator.claim_much,
    Mutator.nest_deeply,
    Mutator.repeat_often,
)
