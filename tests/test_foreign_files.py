"""Files from elsewhere are opened only if they are regular and no larger than expected."""

import os
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from bdfl.errors import one_line, printable
from bdfl.scenario import ScenarioError, load_scenario
from bdfl.storage import find_stray, open_parquet, read_regular


def test_a_regular_file_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1234")
    assert read_regular(tmp_path / "file", 4) == b"1234"
    with pytest.raises(OSError, match="4 bytes, at most 3 expected"):
        read_regular(tmp_path / "file", 3)


def test_a_pipe_a_device_a_folder_and_a_link_are_not(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "file").touch()
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OSError, match="no regular file"):
            read_regular(path, 10)
    with pytest.raises(IsADirectoryError):
        read_regular(tmp_path, 10)
    assert read_regular(tmp_path / "link", 10) == b""
    with pytest.raises(OSError, match="symbolic links"):
        read_regular(tmp_path / "link", 10, follows=False)


def test_a_stray_is_found_at_any_depth_but_beside(tmp_path: Path) -> None:
    (tmp_path / "a/blobs").mkdir(parents=True)
    (tmp_path / "a/file").touch()
    os.mkfifo(tmp_path / "a/blobs/pipe")
    assert find_stray(tmp_path, beside=frozenset(["blobs"])) is None
    assert find_stray(tmp_path) == tmp_path / "a/blobs/pipe"
    (tmp_path / "a/tmp").symlink_to("/")
    assert find_stray(tmp_path, beside=frozenset(["blobs"])) == tmp_path / "a/tmp"


def test_parquet_is_no_larger_than_its_bytes_justify(tmp_path: Path) -> None:
    path = tmp_path / "rounds.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"x": np.zeros(5_000_000, np.int8)}), path)
    with pytest.raises(OSError, match="5000000 cells in"):
        open_parquet(path)
    cell = "x" * 2**26
    pyarrow.parquet.write_table(pyarrow.table({"x": [cell]}), path, compression="zstd", use_dictionary=False)
    with pytest.raises(OSError, match="1 cells in"):
        open_parquet(path)
    pyarrow.parquet.write_table(pyarrow.table({"x": np.arange(1000)}), path)
    with open_parquet(path) as file:
        assert file.metadata.num_rows == 1000
    with pytest.raises(OSError, match="at most 999 expected"):
        open_parquet(path, 999)


@pytest.mark.parametrize(
    "text",
    [
        "[" + ".".join(["a"] * 20_000) + "]\n",
        "[" + ".".join(['"a,b"'] * 20_000) + "]\n",
        "x = " + "[" * 5_000,
        "x = " + "9" * 5_000,
        "x = [" + "1," * 600_000 + "]",
        "a" + ".a" * 5_000 + " = 1",
    ],
    ids=["dotted", "quoted", "deep", "digits", "long", "levels"],
)
def test_toml_that_takes_long_is_refused_in_a_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(ScenarioError) as caught:
        load_scenario(tmp_path / "bad.toml")
    assert "\n" not in str(caught.value)


def test_control_characters_become_escapes() -> None:
    assert printable("a\x1b[2Jb\nc\x9b\u202e\udc80é") == "a\\x1b[2Jb\nc\\x9b\\u202e\\udc80é"
    assert one_line("a\nb\x07") == "a b\\x07"
