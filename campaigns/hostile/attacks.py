"""Attacks of hostile peers, by name."""

from dataclasses import dataclass
from enum import StrEnum

IMPERSONATED = "impersonated"


class Who(StrEnum):
    """Kind of attacker."""

    STRANGER = "stranger"  # can connect to the nodes, but has no trusted certificate
    MEMBER = "member"  # with a valid key and certificate


@dataclass(frozen=True)
class Attack:
    """One kind of payload, sent repeatedly."""

    name: str
    who: Who
    what: str


ATTACKS = (
    Attack("garbage", Who.MEMBER, "random bytes as messages"),
    Attack("oversized", Who.MEMBER, "messages larger than any may be"),
    Attack("replayed", Who.MEMBER, "others' genuine envelopes again, on its own keys and on theirs"),
    Attack("repeated", Who.MEMBER, "a genuine envelope of its own again"),
    Attack("forged-sender", Who.MEMBER, "envelopes in others' names, on its own keys and on theirs"),
    Attack(IMPERSONATED, Who.MEMBER, "the same and others' genuine ones, connected with certificates in their names"),
    Attack("forged-mac", Who.MEMBER, "envelopes of its own whose MACs are made up"),
    Attack("wrong-chain", Who.MEMBER, "authentic messages of another chain, and for another chain"),
    Attack("wrong-round", Who.MEMBER, "authentic messages with genuine content of another round"),
    Attack("false-statements", Who.MEMBER, "authentic messages with updates, reports and votes nobody signed"),
    Attack("begging", Who.MEMBER, "authentic requests for old blocks, far too many"),
    Attack("no-such-blob", Who.MEMBER, "authentic requests for pieces of models that nobody has"),
    Attack("bad-offset", Who.MEMBER, "authentic requests for pieces beyond the end, or before the beginning"),
    Attack("garbage-requests", Who.MEMBER, "random bytes as requests, small and oversized"),
    # Last: zenoh delays new connections after many failed handshakes.
    Attack("noise", Who.STRANGER, "random bytes on a new connection, which is closed"),
    Attack("half-open", Who.STRANGER, "connections that say nothing and stay"),
    Attack("half-hello", Who.STRANGER, "the first half of a TLS handshake, then random bytes"),
    Attack("unlisted", Who.STRANGER, "whole TLS handshakes with a certificate that is not listed"),
)


def find_attack(name: str) -> Attack:
    """Return the attack of that name."""
    return next(attack for attack in ATTACKS if attack.name == name)
