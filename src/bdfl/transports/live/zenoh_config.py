"""Zenoh configuration and key expressions of nodes and access points. Tested with zenoh 1.10.

- Nodes that listen are zenoh peers. Gossip connects them; each needs to know one address.
- Nodes that only dial out are zenoh clients of one peer or access point at a time, and fail over to the next in their
  list. A peer relays between its clients and all others, but never between two peers.
- Access points are zenoh routers. They forward along shortest paths in any topology.
- A client of a member publishes under that relay's prefix (`via/RELAY/`), so a receiver knows which connection may
  carry it. A relay that forges or floods other names is thereby distinct from directly connected members.
- Certificate host names are not verified: the roots list all participants, and members change addresses.
  `access_control` restricts each certificate name to its own keys; it is fixed while a session is open.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import zenoh

from bdfl.transports.live.certificates import TlsFiles, common_name_of, is_authority, member_name, read_roots

_SLACK = 64 * 1024  # overhead of a zenoh message
_CLIENT_TIMEOUT_MS = 1_000  # a client opens only when connected; the link retries
_MORE_SESSIONS = 64  # for access points and sessions being replaced
_QUEUE = 16  # batches of 64 KiB; zenoh's maximum
_EVERYTHING = [
    "put",
    "delete",
    "declare_subscriber",
    "query",
    "reply",
    "declare_queryable",
    "liveliness_token",
    "liveliness_query",
    "declare_liveliness_subscriber",
]


_HARMLESS = [
    "declare_subscriber",
    "declare_queryable",
    "reply",
    "liveliness_query",
    "declare_liveliness_subscriber",
]


class Role(StrEnum):
    """Zenoh mode of a session."""

    PEER = "peer"
    CLIENT = "client"
    ACCESS_POINT = "router"


class Line(NamedTuple):
    """The path of a member's messages: direct (or through access points), or relayed by another member."""

    member: int
    relay: int | None = None


@dataclass(frozen=True)
class Keys:
    """Key expressions of one chain, direct or through one relay."""

    chain: str  # hexadecimal; * for any
    relay: int | str | None = None

    @property
    def base(self) -> str:
        return f"bdfl/{self.chain}" if self.relay is None else f"bdfl/{self.chain}/via/{self.relay}"

    def via(self, relay: int | str | None) -> "Keys":
        return Keys(self.chain, relay)

    def to_all(self, sender: int | str) -> str:
        return f"{self.base}/all/{sender}"

    def to_one(self, receiver: int | str, sender: int | str) -> str:
        return f"{self.base}/to/{receiver}/{sender}"

    def blob(self, holder: int | str, asker: int | str) -> str:
        return f"{self.base}/blob/{holder}/{asker}"

    def here(self, member: int | str, session: str = "*") -> str:
        """Return the presence key of a member's session; two sessions of one member mean two nodes with one key."""
        return f"{self.base}/here/{session}/{member}"


def chain_keys(chain: bytes) -> Keys:
    """Return the key expressions of a chain, by its id of 32 bytes."""
    return Keys(chain.hex()[:16])


def line_of(key: object) -> Line | None:
    """Parse the member and relay of a key; None if either number is invalid."""
    parts = str(key).split("/")
    member = _number(parts[-1])
    if member is None or len(parts) < 4:
        return None
    if parts[2] != "via":
        return Line(member)
    relay = _number(parts[3])
    return None if relay is None else Line(member, relay)


def _number(text: str) -> int | None:
    """Parse a member number in canonical decimal form."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 6 and str(int(text)) == text else None


def session_config(
    role: Role,
    listen: Sequence[str],
    peers: Sequence[str],
    tls: TlsFiles | None,
    *,
    keys: Keys,
    members: Collection[int],
    lease_s: float,
    max_payload: int,
    number: int | None = None,
) -> zenoh.Config:
    """Return the configuration of a session; addresses are `host:port`, `members` may send.

    `number` is the node's own, which prefixes its relayed clients; None for an access point.
    """
    protocol = "tcp" if tls is None else "tls"
    config = {
        "mode": role.value,
        "listen": {"endpoints": [f"{protocol}/{address}" for address in listen], "exit_on_failure": True},
        "connect": {
            "endpoints": [f"{protocol}/{address}" for address in peers],
            "timeout_ms": _CLIENT_TIMEOUT_MS if role is Role.CLIENT else -1,
            "exit_on_failure": False,
            "retry": {"period_init_ms": 200, "period_max_ms": 2000, "period_increase_factor": 1.5},
        },
        "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": role is not Role.CLIENT}},
        "adminspace": {"enabled": False},
        "transport": {
            "shared_memory": {"enabled": False},
            "unicast": {"max_sessions": max_sessions(len(members)), "accept_timeout": 5000},
            "link": {
                "protocols": [protocol],
                "tx": {
                    "lease": round(lease_s * 1000),
                    "queue": {
                        "size": {"interactive_high": _QUEUE, "data": _QUEUE},
                        "congestion_control": {
                            "drop": {"wait_before_drop": 100_000, "max_wait_before_drop_fragments": 1_000_000},
                            "block": {"wait_before_close": round(lease_s * 1_000_000)},
                        },
                    },
                },
                "rx": {"max_message_size": max_payload + _SLACK},
            },
        },
    }
    if tls is not None:
        config["transport"]["link"]["tls"] = _tls(tls)  # type: ignore[index]
        config["access_control"] = _access_control(role, keys, number, members, access_point_names(tls))
    return zenoh.Config.from_json5(json.dumps(config))


def max_sessions(num_members: int) -> int:
    """Return the limit of connections of a session."""
    return 4 * num_members + _MORE_SESSIONS


def access_point_names(tls: TlsFiles) -> list[str]:
    """Return the common names of the access points among the roots."""
    return [common_name_of(root) for root in read_roots(tls.roots) if not is_authority(root)]


def count_authorities(tls: TlsFiles) -> int:
    """Return the number of members' authorities among the roots."""
    return sum(is_authority(root) for root in read_roots(tls.roots))


def _tls(files: TlsFiles) -> dict[str, object]:
    return {
        "root_ca_certificate": str(files.roots),
        "enable_mtls": True,
        "listen_private_key": str(files.key),
        "listen_certificate": str(files.certificate),
        "connect_private_key": str(files.key),
        "connect_certificate": str(files.certificate),
        "verify_name_on_connect": False,
        "close_link_on_expiration": True,
    }


def _access_control(
    role: Role, keys: Keys, number: int | None, members: Collection[int], access_points: list[str]
) -> dict[str, object]:
    """Return the access control list of connections; an unlisted name can neither send nor receive.

    Messages, requests and presence use up the receiver's budgets. So a member may send its own, under this node's
    prefix if it is this node's client, and relay anything under its own prefix. Access points, and the relay of a
    client, forward everything. Declarations and replies cost nothing and are authenticated end to end.
    """
    names = {member: member_name(member) for member in (*members, *(() if number is None else (number,)))}
    everybody = [*names.values(), *access_points]
    if not everybody:
        return {"enabled": True, "default_permission": "deny", "rules": [], "subjects": [], "policies": []}
    forwards = everybody if role is Role.CLIENT else access_points
    rules = [
        _rule("out", "egress", _EVERYTHING, [f"{keys.base}/**"]),
        _rule("declare", "ingress", _HARMLESS, [f"{keys.base}/**"]),
        _rule("forward", "ingress", _EVERYTHING, [f"{keys.base}/**"]),
    ]
    subjects = [{"id": "everybody", "cert_common_names": everybody}]
    policies: list[dict[str, list[str]]] = [{"subjects": ["everybody"], "rules": ["out", "declare"]}]
    if forwards:
        subjects.append({"id": "forwarders", "cert_common_names": forwards})
        policies.append({"subjects": ["forwarders"], "rules": ["forward"]})
    paths = [keys] if number is None else [keys, keys.via(number)]
    for member, name in names.items():
        relayed = f"{keys.via(member).base}/**"
        said = [key for path in paths for key in (path.to_all(member), path.to_one("*", member))]
        own = [
            _rule(f"say-{member}", "ingress", ["put"], [*said, relayed]),
            _rule(f"ask-{member}", "ingress", ["query"], [*(path.blob("*", member) for path in paths), relayed]),
            _rule(f"here-{member}", "ingress", ["liveliness_token"], [*(path.here(member) for path in paths), relayed]),
        ]
        if member == number:  # a second node with this key: only its presence is accepted
            own = own[-1:]
        rules += own
        subjects.append({"id": name, "cert_common_names": [name]})
        policies.append({"subjects": [name], "rules": [str(rule["id"]) for rule in own]})
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": subjects,
        "policies": policies,
    }


def _rule(name: str, flow: str, messages: list[str], keys: list[str]) -> dict[str, object]:
    return {"id": name, "permission": "allow", "flows": [flow], "messages": messages, "key_exprs": keys}
