"""Keys and signatures on which Ed25519 verifiers are known to disagree, computed from the curve's equations.

[Chalkias20] Chalkias, Garillot, Nikolaenko: "Taming the Many EdDSAs", SSR 2020, Table 5: twelve cases, here made anew
over messages of 32 bytes; then the points of small order in all their encodings, and bytes that are no point.
"""

from collections.abc import Iterator
from hashlib import sha512
from itertools import count

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
_ROOT_OF_MINUS_ONE = pow(2, (P - 1) // 4, P)

Point = tuple[int, int]  # affine
ZERO: Point = (0, 1)


def add(one: Point, other: Point) -> Point:
    (x1, y1), (x2, y2) = one, other
    product = D * x1 * x2 * y1 * y2 % P
    x = (x1 * y2 + x2 * y1) * pow(1 + product, -1, P) % P
    return x, (y1 * y2 + x1 * x2) * pow(1 - product, -1, P) % P


def times(factor: int, point: Point) -> Point:
    result = ZERO
    while factor:
        if factor & 1:
            result = add(result, point)
        point, factor = add(point, point), factor >> 1
    return result


def minus(point: Point) -> Point:
    return -point[0] % P, point[1]


def lift(y: int, sign: int) -> Point | None:
    """The point with this y whose x is odd or even; none: there is none."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * _ROOT_OF_MINUS_ONE % P
    if x * x % P != square:
        return None
    return (x if x & 1 == sign else -x % P), y


def pack(point: Point) -> bytes:
    return (point[1] | (point[0] & 1) << 255).to_bytes(32, "little")


def _lifted(y: int, sign: int) -> Point:
    point = lift(y, sign)
    assert point is not None
    return point


BASE = _lifted(4 * pow(5, -1, P) % P, 0)
TORSION = next(  # of order 8: the part of some point that the prime subgroup has no share in
    found for y in count(2) if (point := lift(y, 0)) is not None and times(4, found := times(L, point)) != ZERO
)
SMALL = [times(factor, TORSION) for factor in range(8)]
# All 32 bytes that a decoder without checks may read as a point of small order: p and p + 1 stand for 0 and 1.
SMALL_ENCODINGS = sorted(
    {
        (value | sign << 255).to_bytes(32, "little")
        for _, y in SMALL
        for value in (y, y + P)
        if value < 2**255
        for sign in (0, 1)
    }
)


def challenge(nonce_point: bytes, key: bytes, message: bytes) -> int:
    return int.from_bytes(sha512(nonce_point + key + message).digest(), "little") % L


def _message(number: int) -> bytes:
    return b"bdfl" + number.to_bytes(28, "big")


def _signature(nonce_point: bytes, scalar: int) -> bytes:
    return nonce_point + scalar.to_bytes(32, "little")


def edge_cases() -> list[dict[str, object]]:
    """Each as `why`, `key`, `message`, `signature`, and by the rule of FORMAT.md `is_key` and `is_signed`."""
    secret, nonce = 0x1234567890ABCDEF, 0xFEDCBA0987654321
    good_key, good_nonce = times(secret, BASE), times(nonce, BASE)
    mixed_key, mixed_nonce = add(good_key, TORSION), add(good_nonce, TORSION)
    small = SMALL[1]
    cases: list[dict[str, object]] = []

    def note(why: str, key: bytes, message: bytes, signature: bytes, *, is_key: bool, is_signed: bool) -> None:
        given = {"key": key.hex(), "message": message.hex(), "signature": signature.hex()}
        cases.append({"why": why, **given, "is_key": is_key, "is_signed": is_signed})

    def find(nonce_point: bytes, key: bytes, wanted: int) -> tuple[bytes, int]:
        """A message whose challenge is `wanted` modulo 8, and the challenge."""
        for number in count():
            hashed = challenge(nonce_point, key, _message(number))
            if hashed % 8 == wanted:
                return _message(number), hashed
        raise AssertionError

    # 0 to 2: key or R of small order; all of them hold without a cofactor, and 0 for nearly any message
    message, _ = find(pack(minus(small)), pack(small), 1)
    note(
        "0: S = 0, key and R of small order",
        pack(small),
        message,
        _signature(pack(minus(small)), 0),
        is_key=False,
        is_signed=False,
    )
    message, hashed = find(pack(mixed_nonce), pack(small), 7)
    note(
        "1: key of small order, R mixed",
        pack(small),
        message,
        _signature(pack(mixed_nonce), nonce),
        is_key=False,
        is_signed=False,
    )
    message, hashed = find(pack(small), pack(mixed_key), 7)
    note(
        "2: key mixed, R of small order",
        pack(mixed_key),
        message,
        _signature(pack(small), hashed * secret % L),
        is_key=True,
        is_signed=False,
    )
    # 3 to 5: key and R of mixed order
    message, hashed = find(pack(mixed_nonce), pack(mixed_key), 7)
    note(
        "3: key and R mixed, holds without a cofactor",
        pack(mixed_key),
        message,
        _signature(pack(mixed_nonce), (nonce + hashed * secret) % L),
        is_key=True,
        is_signed=True,
    )
    message, hashed = find(pack(mixed_nonce), pack(mixed_key), 1)
    note(
        "4: key and R mixed, holds with a cofactor only",
        pack(mixed_key),
        message,
        _signature(pack(mixed_nonce), (nonce + hashed * secret) % L),
        is_key=True,
        is_signed=False,
    )
    message, hashed = find(pack(good_nonce), pack(mixed_key), 1)
    note(
        "5: key mixed, R not, holds with a cofactor only",
        pack(mixed_key),
        message,
        _signature(pack(good_nonce), (nonce + hashed * secret) % L),
        is_key=True,
        is_signed=False,
    )
    # 6 and 7: S above the order
    message = _message(0)
    scalar = (nonce + challenge(pack(good_nonce), pack(good_key), message) * secret) % L
    note("6: S + L", pack(good_key), message, _signature(pack(good_nonce), scalar + L), is_key=True, is_signed=False)
    note(
        "7: S + 8 L, its top bits set",
        pack(good_key),
        message,
        _signature(pack(good_nonce), scalar + 8 * L),
        is_key=True,
        is_signed=False,
    )
    # 8 and 9: R in a second encoding (only of small order is there one); hashed as it stands, or reduced first
    odd = (P + 1).to_bytes(32, "little")
    for number, hashed_as in ((8, odd), (9, pack(ZERO))):
        scalar = challenge(hashed_as, pack(good_key), message) * secret % L
        how = "as it stands" if number == 8 else "reduced"
        note(
            f"{number}: R not canonical, hashed {how}",
            pack(good_key),
            message,
            _signature(odd, scalar),
            is_key=True,
            is_signed=False,
        )
    # 10 and 11: the key in a second encoding (y = 0, of order 4, written as p); only one way of hashing makes it hold
    odd, right = P.to_bytes(32, "little"), pack((_lifted(0, 0)[0], 0))
    for number, how in ((10, "as it stands"), (11, "reduced")):
        message = next(
            message
            for message in map(_message, count())
            if [challenge(pack(good_nonce), key, message) % 4 == 0 for key in (odd, right)]
            == [number == 10, number == 11]
        )
        note(
            f"{number}: key not canonical, hashed {how}",
            odd,
            message,
            _signature(pack(good_nonce), nonce),
            is_key=False,
            is_signed=False,
        )
    message = _message(0)
    scalar = challenge(pack(ZERO), pack(good_key), message) * secret % L
    note("R the neutral element", pack(good_key), message, _signature(pack(ZERO), scalar), is_key=True, is_signed=False)
    scalar = (nonce + challenge(pack(good_nonce), pack(good_key), message) * secret) % L
    note("as it should be", pack(good_key), message, _signature(pack(good_nonce), scalar), is_key=True, is_signed=True)
    for key, why in _bad_keys():
        note(why, key, message, _signature(pack(ZERO), 0), is_key=False, is_signed=False)
    return cases


def _bad_keys() -> Iterator[tuple[bytes, str]]:
    yield from ((key, f"small order: {key.hex()}") for key in SMALL_ENCODINGS)
    y = next(y for y in count(2) if lift(y, 0) is None)
    yield y.to_bytes(32, "little"), "no point"
    y = next(y for y in count(2) if lift(y, 0) is not None and y + P < 2**255)
    yield (y + P).to_bytes(32, "little"), "a point of large order, not canonical"
