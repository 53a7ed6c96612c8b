"""Questions over a plain socket: nothing between the test and the server tidies up what is asked."""

import socket
from dataclasses import dataclass

TIMEOUT_S = 120.0  # a busy machine with two cores


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    content: bytes


def ask(port, path, *, method="GET", host="", headers=(), sends_host=True):
    """The answer to one request; `path` goes over the line as it is."""
    lines = [f"{method} {path} HTTP/1.1"]
    lines += [f"Host: {host or f'127.0.0.1:{port}'}"] if sends_host else []
    lines += [*headers, "Connection: close", "", ""]
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as line:
        line.sendall("\r\n".join(lines).encode("latin-1"))
        return read_answer(line)


def read_answer(line):
    data = b""
    while chunk := line.recv(65536):
        data += chunk
    head, _, content = data.partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    pairs = (one.partition(":") for one in rest)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    return Answer(int(first.split()[1]), headers, content)
