"""Human-readable fingerprints: proquints of five letters for two bytes, alternating consonants and vowels."""

from bdfl.encoding import digest

_CONSONANTS = "bdfghjklmnprstvz"  # four bits each
_VOWELS = "aiou"  # two bits each
_KEY_BYTES = 8
_GROUP = 8  # hexadecimal digits


def speakable(data: bytes) -> str:
    """Encode an even number of bytes as proquints, such as `lusab-babad`, one for every two bytes."""
    return "-".join(_word(int.from_bytes(data[place : place + 2])) for place in range(0, len(data), 2))


def key_fingerprint(public_key: bytes) -> str:
    """Return four words that identify a public key: the first 64 bits of its digest."""
    return speakable(digest(public_key)[:_KEY_BYTES])


def in_groups(data: bytes) -> str:
    """Format a digest in hexadecimal, in groups of eight."""
    text = data.hex()
    return " ".join(text[place : place + _GROUP] for place in range(0, len(text), _GROUP))


def _word(value: int) -> str:
    first, second, third = (_CONSONANTS[value >> shift & 15] for shift in (12, 6, 0))
    return f"{first}{_VOWELS[value >> 10 & 3]}{second}{_VOWELS[value >> 4 & 3]}{third}"
