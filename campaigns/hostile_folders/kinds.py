"""Kinds of hostile folders: each derives an attack from an intact run folder and lists the commands it targets."""

import hashlib
import json
import os
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pyarrow
import pyarrow.parquet

from campaigns.hostile_folders.corruptions import database, list_blobs, writing
from campaigns.hostile_folders.judging import CANARY

_ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e[red]x[/red][link=http://x]y"
_SHADOWED = (
    "numpy", "torch", "bdfl", "typer", "rich", "msgspec", "pyarrow", "matplotlib", "multiprocessing", "sitecustomize",
    "usercustomize",
)  # fmt: skip

LOOK = (("chain", "verify", "."), ("chain", "show", "."))
CHAIN = (
    *LOOK,
    ("chain", "show", ".", "--json"),
    ("chain", "block", ".", "1"),
    ("chain", "trace", "."),
    ("chain", "export", "."),
    ("chain", "audit", ".", "--out", "../audit.html"),
    ("chain", "without", ".", "0", "--out", "../without.safetensors"),
    ("chain", "prove", ".", "1", "0"),
    ("export", ".", "--out", "../tables"),
    ("explore", ".", "--export", "../site"),
)
WRITE = (("report", "."), ("run", "--resume", "."), ("chain", "prune", ".", "--keep", "1"))
TABLES = (
    ("export", ".", "--out", "../tables"),
    ("export", ".", "--list"),
    ("track", ".", "--to", "tensorboard:../board"),
    ("explore", ".", "--export", "../site"),
)
SIDE = (("report", "."), ("run", "--resume", "."), ("explore", ".", "--export", "../site"), ("chain", "blame", "."))
ALL = tuple(dict.fromkeys((*CHAIN, *WRITE, *TABLES, *SIDE)))
NETWORK = (
    ("network", "status", "."),
    ("network", "up", "--resume", ".", "--plain"),
    ("explore", ".", "--export", "../s"),
)

Command = tuple[str, ...]
Harm = Callable[[random.Random, Path], None]


@dataclass(frozen=True)
class Kind:
    """An attack and the commands it targets."""

    harm: Harm
    commands: tuple[Command, ...]


def plant_canaries(folder: Path, canary: Path) -> None:
    """Plant modules that leave a mark if they are imported or called."""
    sign = f"open({str(canary)!r}, 'a').write(__name__ + ' ')\n"
    call = "def load(*a, **k):\n    " + sign + "    return None\n"
    for name in ("evil", *_SHADOWED):
        (folder / f"{name}.py").write_text(sign + call)
    info = folder / "evil-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[bdfl.schedulers]\nevil = evil:load\n[bdfl.trackers]\nevil = evil:load\n")


def _fifo_blob(draw: random.Random, folder: Path) -> None:
    _replace(draw.choice(list_blobs(folder)), os.mkfifo)


def _sparse_blob(draw: random.Random, folder: Path) -> None:
    os.truncate(draw.choice(list_blobs(folder)), 40 * 10**9)


def _link_blob(draw: random.Random, folder: Path) -> None:
    blob = draw.choice(list_blobs(folder))
    _replace(blob, lambda path: path.symlink_to(draw.choice(["/dev/zero", "/etc/passwd", "/proc/self/mem", "."])))


def _folder_blob(draw: random.Random, folder: Path) -> None:
    _replace(draw.choice(list_blobs(folder)), Path.mkdir)


def _endless_view(draw: random.Random, folder: Path) -> None:
    table = draw.choice(["checkpoint", "genesis", "blocks", "uses", "proofs"])
    with writing(folder) as connection:
        connection.execute(f"DROP TABLE {table}")
        endless = "WITH RECURSIVE n(height) AS (SELECT 1 UNION ALL SELECT height + 1 FROM n)"
        columns = "height, height AS data, height AS certificate, height AS checksum, height AS blob, 0 AS client"
        connection.execute(f"CREATE VIEW {table} AS {endless} SELECT {columns} FROM n")


def _trigger(draw: random.Random, folder: Path) -> None:
    table = draw.choice(["blocks", "checkpoint", "uses", "blobs"])
    event = draw.choice(["INSERT", "UPDATE", "DELETE"])
    with writing(folder) as connection:
        connection.execute(f"CREATE TRIGGER t AFTER {event} ON {table} BEGIN DELETE FROM blocks; END")


def _generated(draw: random.Random, folder: Path) -> None:
    with writing(folder) as connection:
        connection.execute("ALTER TABLE checkpoint RENAME TO old")
        term = draw.choice(["a + 1", "zeroblob(900000000)", "printf('%.*c', 900000000, 'x')"])
        connection.execute(f"CREATE TABLE checkpoint (a INTEGER, height INTEGER AS ({term}))")
        connection.execute("INSERT INTO checkpoint (a) VALUES (0)")


def _wrong_types(draw: random.Random, folder: Path) -> None:
    table, column = draw.choice(
        [
            ("checkpoint", "height"),
            ("blocks", "data"),
            ("blocks", "certificate"),
            ("genesis", "data"),
            ("uses", "height"),
        ]
    )
    with writing(folder, is_free=True) as connection:
        connection.execute(f"UPDATE {table} SET {column} = ?", (draw.choice([1.5, "text", -5, None, b"", 2**62]),))


def _invalid_text(draw: random.Random, folder: Path) -> None:
    table, column = draw.choice([("genesis", "data"), ("blocks", "data"), ("checkpoint", "height"), ("uses", "blob")])
    with writing(folder, is_free=True) as connection:
        connection.execute(f"UPDATE {table} SET {column} = CAST(? AS TEXT)", (draw.randbytes(50) + b"\xff\xfe",))


def _names(text: str) -> Harm:
    def harm(draw: random.Random, folder: Path) -> None:
        from bdfl.encoding import encode
        from bdfl.ledger.sqlite_store import ChainStore

        with ChainStore.open(folder / "chain", read_only=True) as store:
            genesis = msgspec.structs.replace(store.genesis, name=text)
        data = encode(genesis)
        with writing(folder) as connection:
            connection.execute("UPDATE genesis SET data = ?, checksum = ?", (data, hashlib.sha256(data).digest()))
        _edit(folder, r"^name = .*$", f"name = {json.dumps(text)}")

    return harm


def _huge_parquet(draw: random.Random, folder: Path) -> None:
    """Write a Parquet file of 20 or 40 million equal rows in a few bytes."""
    rows = draw.choice([20_000_000, 40_000_000])
    column = pyarrow.array(np.zeros(rows, dtype=np.int8))
    path = folder / draw.choice(["rounds.parquet", "clients.parquet", "points.parquet"])
    pyarrow.parquet.write_table(pyarrow.table({"round": column, "client": column}), path, compression="zstd")


def _bomb_parquet(draw: random.Random, folder: Path) -> None:
    """Write a Parquet file with two cells that unpack to hundreds of megabytes."""
    cell = "x" * draw.choice([2**28, 2**29])
    path = folder / draw.choice(["rounds.parquet", "clients.parquet"])
    pyarrow.parquet.write_table(pyarrow.table({"round": [cell, cell]}), path, compression="zstd", use_dictionary=False)


def _odd_parquet(draw: random.Random, folder: Path) -> None:
    """Write columns of other types and names, or flip bits in the footer."""
    path = folder / draw.choice(["rounds.parquet", "clients.parquet"])
    if draw.random() < 0.5:
        data = bytearray(path.read_bytes())
        for _ in range(draw.randint(1, 20)):
            data[-draw.randint(1, min(len(data), 4000))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        return
    table = pyarrow.parquet.read_table(path)
    names = [_ESCAPES if name == "round" and draw.random() < 0.5 else name for name in table.column_names]
    columns = [table[name].cast(pyarrow.string()) if draw.random() < 0.2 else table[name] for name in table.column_names
               if not pyarrow.types.is_list(table[name].type)]  # fmt: skip
    names = [
        name for name, old in zip(names, table.column_names, strict=True) if not pyarrow.types.is_list(table[old].type)
    ]
    pyarrow.parquet.write_table(pyarrow.table(columns, names=names), path)


def _deep_json(draw: random.Random, folder: Path) -> None:
    deep = draw.choice([b"[", b'{"a":']) * 200_000
    (folder / "journal.jsonl").write_bytes(deep + b"\n")


def _odd_journal(draw: random.Random, folder: Path) -> None:
    path = folder / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    choice = draw.randrange(4)
    if choice == 0:
        lines.insert(1, b"\xff\xfe\x1b[2J\n")
    elif choice == 1:
        lines[1] = lines[2]
    elif choice == 2:
        lines[0] = lines[0].replace(b'"format":', b'"format":9')
    else:
        lines.append(lines[-1].replace(b'"round":5', b'"round":99999999999999999999999'))
    path.write_bytes(b"".join(lines))


def _huge_side(draw: random.Random, folder: Path) -> None:
    """Replace a small file by a sparse one of 40 GB."""
    os.truncate(
        folder / draw.choice(["journal.jsonl", "scenario.toml", "rounds.parquet", "clients.parquet"]), 40 * 10**9
    )


def _huge_toml(draw: random.Random, folder: Path) -> None:
    path = folder / "scenario.toml"
    text = draw.choice(
        ["x = [" + "1," * 3_000_000 + "]\n", "# " + "x" * 5_000_000, "a = '''" + "y" * 4_000_000 + "'''\n"]
    )
    path.write_text(path.read_text() + text)


def _dotted_toml(draw: random.Random, folder: Path) -> None:
    part = draw.choice(["a", '"a,b"', "'a'", "1"])
    path = folder / "scenario.toml"
    path.write_text("[" + ".".join([part] * draw.choice([8_000, 150_000])) + "]\n" + path.read_text())


def _deep_toml(draw: random.Random, folder: Path) -> None:
    path = folder / "scenario.toml"
    opening = draw.choice(["[", "{a="])
    path.write_text(path.read_text() + "\n[extra]\nx = " + opening * draw.choice([500, 5_000, 200_000]))


def _odd_toml(draw: random.Random, folder: Path) -> None:
    path = folder / "scenario.toml"
    choice = draw.randrange(4)
    if choice == 0:
        path.write_bytes(path.read_bytes() + b"\nx = '\xff\xfe'\n")
    elif choice == 1:
        _edit(folder, r"^rounds = .*$", f"rounds = {draw.choice(['9' * 20, '9' * 10_000, '1e400', '10000000'])}")
    elif choice == 2:
        _edit(folder, r"^count = .*$", f"count = {draw.choice([10**9, 10**7, 10**18])}")
    else:
        _edit(folder, r"^name = .*$", f"name = {json.dumps(_ESCAPES)}")


def _functions(draw: random.Random, folder: Path) -> None:
    """Name functions in the scenario, and make the chain refer to that scenario."""
    name = draw.choice(["evil:load", "os:getcwd", "antigravity:fly_from_it", "numpy:load"])
    key = draw.choice(["source", "model", "flower", "flower_model", "rule"])
    if key in ("flower", "flower_model"):
        _edit(folder, r"^\[learning\]$", f'[learning]\nflower = "{name}"')  # the run measures no gradients
    else:
        before = {"source": "digits", "model": "mlp", "rule": "mean"}[key]
        _edit(folder, rf'^{key} = "{before}"$', f'{key} = "{name}"')
    _adopt_scenario(folder, name if key == "rule" else None)


def _missing_files(draw: random.Random, folder: Path) -> None:
    names = [
        "scenario.toml",
        "journal.jsonl",
        "rounds.parquet",
        "clients.parquet",
        "chain",
        "chain/blobs",
        "chain/chain.sqlite",
    ]
    for name in draw.sample(names, draw.randint(1, 3)):
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _cut_chain(draw: random.Random, folder: Path) -> None:
    """Delete the newest blocks from all tables; the journal still has them."""
    first = draw.randint(1, 5)
    with writing(folder) as connection:
        for table in ("blocks", "uses", "statements", "progress", "blobs"):
            connection.execute(f"DELETE FROM {table} WHERE height >= ?", (first,))


def _swapped_rows(draw: random.Random, folder: Path) -> None:
    with writing(folder) as connection:
        connection.execute("UPDATE blocks SET height = -1 WHERE height = 2")
        connection.execute(f"UPDATE blocks SET height = 2 WHERE height = {draw.choice([1, 3, 4])}")
        connection.execute("UPDATE blocks SET height = 3 WHERE height = -1 AND NOT EXISTS"
                           " (SELECT 1 FROM blocks WHERE height = 3)")  # fmt: skip


def _other_version(draw: random.Random, folder: Path) -> None:
    with writing(folder) as connection:
        connection.execute(f"PRAGMA user_version = {draw.choice([0, 1, 3, -1, 2**31 - 1])}")
        if draw.random() < 0.3:
            connection.execute("PRAGMA application_id = 1")


def _links_out(draw: random.Random, folder: Path) -> None:
    """Place symlinks where commands write, to files outside the folder that must stay unchanged."""
    victim = folder.parent / "victim"
    name, target = draw.choice(
        [
            (".lock", victim / "precious.txt"),
            ("report.html", victim / "precious.txt"),
            (".journal.jsonl.tmp", victim / "precious.txt"),
            ("figures/delay.svg", victim / "precious.txt"),
            ("chain/lock", victim / "precious.txt"),
            ("chain/tmp", victim),
            ("chain/blobs", victim),
        ]
    )
    path = folder / name
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.symlink_to(target)
    with (folder / "journal.jsonl").open("ab") as file:
        file.write(b'{"cut')  # so that it is written again


def _pipes(draw: random.Random, folder: Path) -> None:
    names = [
        "scenario.toml",
        "journal.jsonl",
        ".lock",
        "rounds.parquet",
        "clients.parquet",
        "chain/lock",
        "chain/chain.sqlite",
    ]
    _replace(folder / draw.choice(names), os.mkfifo)


def _devices(draw: random.Random, folder: Path) -> None:
    names = ["scenario.toml", "journal.jsonl", "rounds.parquet", "clients.parquet", "chain/chain.sqlite"]
    target = draw.choice(["/dev/zero", "/dev/stdin", "/dev/tty", "/proc/self/mem", "loop"])
    _replace(folder / draw.choice(names), lambda path: path.symlink_to(path.name if target == "loop" else target))


def _huge_height(draw: random.Random, folder: Path) -> None:
    with writing(folder) as connection:
        connection.execute("UPDATE blocks SET height = ? WHERE height = 5", (draw.choice([2**62, 10**6, 10**9]),))


def _circular_pages(draw: random.Random, folder: Path) -> None:
    """Write interior pages that are their own or each other's children."""
    data = bytearray(database(folder).read_bytes())
    pages = len(data) // 4096
    for _ in range(draw.randint(1, 6)):
        page = draw.randrange(1, pages)
        child = draw.randrange(1, pages) + 1
        cells = 300
        head = (
            bytes([5, 0, 0]) + cells.to_bytes(2, "big") + (1024).to_bytes(2, "big") + b"\0" + child.to_bytes(4, "big")
        )
        pointers = b"".join((1024 + 8 * number).to_bytes(2, "big") for number in range(cells))
        body = bytearray(4096)
        body[: len(head)] = head
        body[len(head) : len(head) + len(pointers)] = pointers
        for number in range(cells):
            body[1024 + 8 * number : 1024 + 8 * number + 5] = child.to_bytes(4, "big") + bytes([number % 127])
        data[page * 4096 : (page + 1) * 4096] = body
    database(folder).write_bytes(data)


def _many_tables(draw: random.Random, folder: Path) -> None:
    with writing(folder) as connection:
        for number in range(draw.choice([1, 2_000])):
            connection.execute(f'CREATE TABLE "{_ESCAPES} {number}" (x)')


def _shadows(draw: random.Random, folder: Path) -> None:
    """Add nothing: every hostile folder already has modules named like those that commands import."""


def _network(draw: random.Random, folder: Path) -> None:
    facts = {"scenario": _ESCAPES, "chain": "00", "num_nodes": draw.choice([10**9, 4, -1]), "num_access_points": 0,
             "blocks": 5, "pid": 1, "functions": draw.choice([[], ["evil:load"]])}  # fmt: skip
    text = draw.choice([json.dumps(facts).encode(), b"[" * 100_000, b"\xff\xfe"])
    (folder / "network.json").write_bytes(text)


def _trace(draw: random.Random, folder: Path) -> None:
    target = draw.choice(["/dev/zero", "/dev/stdin", "pipe", "huge.csv", "../../../../etc/passwd"])
    if target == "pipe":
        os.mkfifo(folder / "pipe")
    (folder / "huge.csv").touch()
    os.truncate(folder / "huge.csv", 40 * 10**9)
    _edit(folder, r"^\[radio\]$", f'[radio]\ntrace = "{target}"')


KINDS: dict[str, Kind] = {
    "pipe as blob": Kind(_fifo_blob, CHAIN),
    "sparse 40 GB blob": Kind(_sparse_blob, CHAIN),
    "link as blob": Kind(_link_blob, CHAIN),
    "folder as blob": Kind(_folder_blob, CHAIN),
    "endless view": Kind(_endless_view, CHAIN),
    "trigger": Kind(_trigger, (*LOOK, *WRITE)),
    "generated column": Kind(_generated, CHAIN),
    "wrong types": Kind(_wrong_types, (*CHAIN, *WRITE)),
    "invalid UTF-8 in rows": Kind(_invalid_text, (*CHAIN, *WRITE)),
    "control characters in names": Kind(_names(_ESCAPES), CHAIN),
    "markup in names": Kind(_names("[bold red]x[/] [/] [link=x] :warning:"), CHAIN),
    "Parquet of 40 million equal rows": Kind(_huge_parquet, TABLES),
    "Parquet that unpacks to 1 GB": Kind(_bomb_parquet, TABLES),
    "Parquet of other columns, bad footer": Kind(_odd_parquet, TABLES),
    "JSON of 200,000 levels": Kind(_deep_json, SIDE),
    "damaged journal": Kind(_odd_journal, SIDE),
    "sparse 40 GB side file": Kind(_huge_side, (*SIDE, *TABLES)),
    "huge TOML": Kind(_huge_toml, SIDE),
    "TOML of dotted keys": Kind(_dotted_toml, SIDE),
    "TOML of many levels": Kind(_deep_toml, SIDE),
    "TOML of odd values": Kind(_odd_toml, SIDE),
    "functions in the scenario": Kind(_functions, (*SIDE, *LOOK)),
    "missing files": Kind(_missing_files, ALL),
    "cut chain": Kind(_cut_chain, (*LOOK, ("chain", "audit", ".", "--out", "../audit.html"), *SIDE)),
    "swapped rows": Kind(_swapped_rows, CHAIN),
    "other version": Kind(_other_version, CHAIN),
    "links out of the folder": Kind(_links_out, (*WRITE, *LOOK)),
    "pipes as side files": Kind(_pipes, ALL),
    "links to devices": Kind(_devices, ALL),
    "block of height 2^62": Kind(_huge_height, CHAIN),
    "pages in circles": Kind(_circular_pages, (*CHAIN, *WRITE)),
    "2,000 foreign tables": Kind(_many_tables, LOOK),
    "modules beside the run": Kind(_shadows, ALL),
    "network file": Kind(_network, NETWORK),
    "trace of gains": Kind(_trace, SIDE),
}

IMPORTING = ("functions in the scenario", "modules beside the run")  # kinds that try to get imported


def make_hostile(kind: str, draw: random.Random, whole: Path, target: Path) -> Path:
    """Make a hostile folder of a kind in the new folder `target`, beside files it must not touch."""
    folder = target / "run"
    shutil.copytree(whole, folder)
    victim = target / "victim"
    victim.mkdir()
    (victim / "precious.txt").write_text("precious")
    plant_canaries(folder, target / CANARY)
    KINDS[kind].harm(draw, folder)
    return folder


def find_harm(target: Path) -> list[str]:
    """List damage to the files beside a hostile folder."""
    found = []
    if (target / CANARY).exists():
        found.append(f"code run: {(target / CANARY).read_text()}")
    victim = target / "victim"
    if sorted(path.name for path in victim.iterdir()) != ["precious.txt"]:
        found.append("files beside it changed")
    elif (victim / "precious.txt").read_text() != "precious":
        found.append("a file beside it changed")
    return found


def _replace(path: Path, make: Callable[[Path], object]) -> None:
    if path.exists() or path.is_symlink():
        path.unlink()
    make(path)


def _edit(folder: Path, pattern: str, text: str) -> None:
    path = folder / "scenario.toml"
    before = path.read_text(encoding="utf-8")
    after, count = re.subn(pattern, lambda _: text, before, count=1, flags=re.M)
    if not count:
        raise ValueError(f"no {pattern} in {path}")
    path.write_text(after, encoding="utf-8")


def _adopt_scenario(folder: Path, rule: str | None) -> None:
    """Make the chain's genesis refer to the present scenario."""
    from bdfl.encoding import encode
    from bdfl.ledger.sqlite_store import ChainStore
    from bdfl.scenario import load_scenario, scenario_digest

    with ChainStore.open(folder / "chain", read_only=True) as store:
        genesis = store.genesis
    named = bytes.fromhex(scenario_digest(load_scenario(folder / "scenario.toml")))
    law = genesis.law if rule is None else msgspec.structs.replace(genesis.law, aggregation=rule)
    data = encode(msgspec.structs.replace(genesis, scenario=named, law=law))
    with writing(folder) as connection:
        connection.execute("UPDATE genesis SET data = ?, checksum = ?", (data, hashlib.sha256(data).digest()))
