"""How zenoh is set up for nodes and access points, and which keys they use. Tried with zenoh 1.10.

- Nodes that listen are zenoh peers: gossip makes them connect to everyone, each knowing some addresses is enough. Peers
  never forward, and routers do not forward between peers; so a node that does not listen is a zenoh client, of one
  access point at a time, and takes the next of its list when that one is gone.
- Access points are zenoh routers. Routers forward along shortest paths between them, however they are connected.
- A certificate's host name is not compared with the address: the roots are the list of who may take part, and members
  move. `access_control` lets a name be heard only as what it is; it is fixed while a session is open.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

import zenoh

from bdfl.transports.live.certificates import TlsFiles, common_name_of, is_authority, member_name, read_roots

_SLACK = 64 * 1024  # of a zenoh message around its payload
_CLIENT_TIMEOUT_MS = 1_000  # a client opens with an access point only; the link tries again
_MORE_SESSIONS = 64  # beside members': access points, and those that are being replaced
_QUEUE = 16  # batches of 64 KiB; the most that zenoh allows
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


class Role(StrEnum):
    """What a session is to others, in zenoh's words."""

    PEER = "peer"
    CLIENT = "client"
    ACCESS_POINT = "router"


@dataclass(frozen=True)
class Keys:
    """The key expressions of one chain, of which anybody may speak on its own only."""

    chain: str  # hexadecimal; * for any

    @property
    def base(self) -> str:
        return f"bdfl/{self.chain}"

    def to_all(self, sender: int | str) -> str:
        return f"{self.base}/all/{sender}"

    def to_one(self, receiver: int | str, sender: int | str) -> str:
        return f"{self.base}/to/{receiver}/{sender}"

    def blob(self, holder: int | str, asker: int | str) -> str:
        return f"{self.base}/blob/{holder}/{asker}"

    def here(self, member: int | str) -> str:
        return f"{self.base}/here/{member}"


def chain_keys(chain: bytes) -> Keys:
    """The keys of a chain by its id, 32 bytes."""
    return Keys(chain.hex()[:16])


def last_number(key: object) -> int | None:
    """The member number a key ends in, written as we write it; none if there is none."""
    text = str(key).rpartition("/")[2]
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
) -> zenoh.Config:
    """Everything zenoh is told; addresses are `host:port`, members those that are heard now."""
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
        config["access_control"] = _access_control(keys, members, access_point_names(tls))
    return zenoh.Config.from_json5(json.dumps(config))


def max_sessions(num_members: int) -> int:
    """How many others a session has at most."""
    return 4 * num_members + _MORE_SESSIONS


def access_point_names(tls: TlsFiles) -> list[str]:
    """The common names of the access points among the roots."""
    return [common_name_of(root) for root in read_roots(tls.roots) if not is_authority(root)]


def count_authorities(tls: TlsFiles) -> int:
    """How many of the roots are members'."""
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


def _access_control(keys: Keys, members: Collection[int], access_points: list[str]) -> dict[str, object]:
    """Members are heard on their own keys, access points on all; whoever is neither gets and gives nothing."""
    if not members and not access_points:
        return {"enabled": True, "default_permission": "deny", "rules": [], "subjects": [], "policies": []}
    rules = [
        _rule("out", "egress", _EVERYTHING, [f"{keys.base}/**"]),
        _rule("forwarded", "ingress", _EVERYTHING, [f"{keys.base}/**"]),
        _rule("watch", "ingress", ["liveliness_query", "declare_liveliness_subscriber"], [keys.here("*")]),
        _rule("listen", "ingress", ["declare_subscriber"], [keys.to_all("*")]),
    ]
    policies: list[dict[str, list[str]]] = [{"subjects": ["everybody"], "rules": ["out"]}]
    if access_points:
        policies.append({"subjects": ["access-points"], "rules": ["forwarded"]})
    subjects = [{"id": "everybody", "cert_common_names": [*map(member_name, members), *access_points]}]
    if access_points:
        subjects.append({"id": "access-points", "cert_common_names": access_points})
    for number in members:
        name = member_name(number)
        own = [
            _rule(f"say-{number}", "ingress", ["put"], [keys.to_all(number), keys.to_one("*", number)]),
            _rule(f"hear-{number}", "ingress", ["declare_subscriber"], [keys.to_one(number, "*")]),
            _rule(f"ask-{number}", "ingress", ["query"], [keys.blob("*", number)]),
            _rule(f"serve-{number}", "ingress", ["declare_queryable", "reply"], [keys.blob(number, "*")]),
            _rule(f"here-{number}", "ingress", ["liveliness_token"], [keys.here(number)]),
        ]
        rules += own
        subjects.append({"id": name, "cert_common_names": [name]})
        allowed = ["watch", "listen", *(str(rule["id"]) for rule in own)]
        policies.append({"subjects": [name], "rules": allowed})
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": subjects,
        "policies": policies,
    }


def _rule(name: str, flow: str, messages: list[str], keys: list[str]) -> dict[str, object]:
    return {"id": name, "permission": "allow", "flows": [flow], "messages": messages, "key_exprs": keys}
