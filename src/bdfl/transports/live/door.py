"""Connection filter: shuts down sockets and blocks their hosts for a few seconds with BPF filters.

Zenoh can do neither, so both act on its sockets in this process. A filter on the listening sockets drops the first
packets of a blocked host: a peer that reconnects at once would cost zenoh more than its messages do. Hosts with too
many pending connections are blocked too: zenoh accepts all, handles ten a second, and holds a file open for each.
Linux only; elsewhere nothing is done, and floods are only throttled.
"""

import ctypes
import errno
import ipaddress
import os
import socket
import stat
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TypeAlias

BARRED_S = 2.0  # the first time, then doubled each time
MAX_BARRED_S = 16.0
_FORGIVEN_S = 60.0  # after the end of a block, the next one is short again
MAX_WAITING = 64  # pending connections of one host
_MANY_FILES = 256  # open files in this process, below which pending connections are not counted
_MAX_BARRED = 16  # addresses at a time; the offsets in a filter are bytes
_IS_POSSIBLE = sys.platform == "linux"
_OPEN_FILES = "/proc/self/fd"
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27

Host: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

# Classic BPF, as sockets take it: linux/filter.h, linux/bpf_common.h
_LOAD_BYTE, _LOAD_WORD, _SHIFT_RIGHT, _JUMP_IF_EQUAL, _RETURN = 0x30, 0x20, 0x74, 0x15, 0x06
_NETWORK_HEADER = 0xFFF00000  # offsets from here are into the packet's IP header
_SOURCE_4, _SOURCE_6 = 12, 8  # offsets of the source address
_ALL_BYTES = 0xFFFFFFFF
_Instruction: TypeAlias = tuple[int, int, int, int]  # code, jump if true, jump if false, value


@dataclass(frozen=True)
class _Bar:
    lasts_s: float
    end_s: float


class Door:
    """Connection filter of the given listening ports, thread-safe. Closing it unblocks all hosts.

    Time is the caller's monotonic clock, in s.
    """

    def __init__(self, ports: Collection[int]) -> None:
        self._ports = frozenset(ports)
        self._bars: dict[Host, _Bar] = {}  # including ended blocks that still count for doubling
        self._barred: frozenset[Host] = frozenset()
        self._lock = threading.Lock()

    def turn_away(self, host: str, port: int, now_s: float, *, bars: bool = True) -> bool:
        """Shut down the connection from that address and, with `bars`, block its host; return whether there was one."""
        where = _host_of(host)
        if not _IS_POSSIBLE or where is None or not _cut(where, port):
            return False
        if bars:
            self._bar(where, now_s)
        return True

    def thin_out(self, known: Collection[tuple[str, int]], now_s: float) -> int:
        """Block hosts with too many pending connections (not in `known`); return the number of hosts blocked."""
        if not _IS_POSSIBLE or len(_open_files()) < _MANY_FILES:
            return 0
        expected = {(_host_of(host), port) for host, port in known}
        waiting: Counter[Host] = Counter()
        for one in _sockets(self._came_in):
            host, port = _peer_of(one)
            if host is not None and (host, port) not in expected:
                waiting[_barred_as(host)] += 1
        return sum(self._bar(host, now_s) for host, count in waiting.items() if count > MAX_WAITING)

    def _came_in(self, one: socket.socket) -> bool:
        return one.getsockname()[1] in self._ports and not _is_listening(one)

    def _bar(self, host: Host, now_s: float) -> bool:
        host = _barred_as(host)
        with self._lock:
            if host in self._barred or len(self._barred) >= _MAX_BARRED:
                return False
            former = self._bars.get(host)
            lasts_s = BARRED_S if former is None else min(2 * former.lasts_s, MAX_BARRED_S)
            self._bars[host] = _Bar(lasts_s, now_s + lasts_s)
            self._filter(now_s)
            return True

    def let_in(self, now_s: float) -> None:
        """Unblock hosts whose time is over."""
        with self._lock:
            if any(self._bars[host].end_s <= now_s for host in self._barred):
                self._filter(now_s)
            self._bars = {host: bar for host, bar in self._bars.items() if now_s < bar.end_s + _FORGIVEN_S}

    def close(self) -> None:
        """Unblock all hosts."""
        with self._lock:
            self._bars.clear()
            if self._barred:
                self._filter(0.0)

    def _filter(self, now_s: float) -> None:
        self._barred = frozenset(host for host, bar in self._bars.items() if now_s < bar.end_s)
        for one in _sockets(_is_listening):
            with suppress(OSError):  # no filters on this system
                if one.getsockname()[1] in self._ports:
                    set_filter(one, self._barred)


def set_filter(listening: socket.socket, hosts: Iterable[Host]) -> None:
    """Drop new connections from these hosts (at most 16) at a listening socket; without hosts, remove the filter."""
    chosen = list(hosts)
    if not chosen:
        with suppress(OSError):  # no filter attached
            listening.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
        return
    program = _program([host for host in chosen if host.version == 4], [host for host in chosen if host.version == 6])
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in program))
    listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", len(program), ctypes.addressof(code)))


def _program(hosts_4: Collection[Host], hosts_6: Collection[Host]) -> list[_Instruction]:
    """Return a BPF program that drops packets from these hosts and keeps all others."""
    keep, drop = (_RETURN, 0, 0, _ALL_BYTES), (_RETURN, 0, 0, 0)
    part_6: list[_Instruction] = []
    for host in hosts_6:
        for place, word in enumerate(struct.unpack("!2I", host.packed[:8])):  # a host owns its whole /64
            to_next_host = 2 * (1 - place) + 1
            part_6 += [_load_word(_SOURCE_6 + 4 * place), (_JUMP_IF_EQUAL, 0, to_next_host, word)]
        part_6.append(drop)
    part_4: list[_Instruction] = [_load_word(_SOURCE_4)]
    for host in hosts_4:
        part_4 += [(_JUMP_IF_EQUAL, 0, 1, int(host)), drop]
    return [
        (_LOAD_BYTE, 0, 0, _NETWORK_HEADER),
        (_SHIFT_RIGHT, 0, 0, 4),
        (_JUMP_IF_EQUAL, 0, len(part_6) + 1, 6),  # IP version
        *part_6,
        keep,
        *part_4,
        keep,
    ]


def _load_word(offset: int) -> _Instruction:
    return (_LOAD_WORD, 0, 0, _NETWORK_HEADER + offset)


def _cut(host: Host, port: int) -> bool:
    is_cut = False
    for one in _sockets(lambda some: _peer_of(some) == (host, port)):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
            is_cut = True
    return is_cut


def _barred_as(host: Host) -> Host:
    """Return the IPv4 address, or the /64 prefix of an IPv6 address: a host owns all of it."""
    return host if host.version == 4 else ipaddress.IPv6Address(host.packed[:8] + bytes(8))


def _open_files() -> Sequence[int]:
    """Return this process's file descriptors; all possible ones if none is left to list them (EMFILE)."""
    try:
        return [int(name) for name in os.listdir(_OPEN_FILES)]
    except OSError as error:
        return range(os.sysconf("SC_OPEN_MAX")) if error.errno == errno.EMFILE else ()


def _sockets(is_meant: Callable[[socket.socket], bool]) -> Iterator[socket.socket]:
    """Yield matching internet sockets of this process; each is valid only during its iteration."""
    for number in _open_files():
        with suppress(OSError), ExitStack() as resources:  # closed or disconnected meanwhile
            try:
                own = os.dup(number)
                resources.callback(os.close, own)
            except OSError as error:
                if error.errno != errno.EMFILE:
                    raise
                own = number  # no descriptor left: use it without a duplicate
            if stat.S_ISSOCK(os.fstat(own).st_mode):
                one = socket.socket(fileno=own)
                resources.callback(one.detach)  # before `own` is closed
                if one.family in (socket.AF_INET, socket.AF_INET6) and is_meant(one):
                    yield one


def _is_listening(one: socket.socket) -> bool:
    return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _peer_of(one: socket.socket) -> tuple[Host | None, int]:
    """Return a socket's remote address; (None, 0) if it is not connected."""
    try:
        host, port = one.getpeername()[:2]
    except OSError:
        return None, 0
    return _host_of(host), port


def _host_of(text: str) -> Host | None:
    try:
        host = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = host.ipv4_mapped if isinstance(host, ipaddress.IPv6Address) else None
    return host if mapped is None else mapped
