"""How large a folder is: of all its files, without waiting, and not looked at all the time."""

import threading
import time

import bdfl.node.run_file as module
from bdfl.node.run_file import FolderSize, folder_bytes


def write(folder, name, size):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))


def test_it_is_that_of_all_files_and_no_link_is_followed(tmp_path):
    write(tmp_path, "inside/a", 3)
    write(tmp_path, "inside/deep/b", 40)
    write(tmp_path, "elsewhere/c", 500)
    (tmp_path / "inside" / "link").symlink_to(tmp_path / "elsewhere")
    own = (tmp_path / "inside" / "link").lstat().st_size
    assert folder_bytes(tmp_path / "inside") == 43 + own
    assert folder_bytes(tmp_path / "nowhere") == 0


def test_whoever_asks_does_not_wait_and_it_is_measured_again_when_it_is_time(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_EVERY_S", 0.0)
    monkeypatch.setattr(module, "_SHARE", 1e9)
    write(tmp_path, "a", 10)
    size = FolderSize(tmp_path)
    assert size.read() == 10
    write(tmp_path, "b", 5)
    deadline_s = time.monotonic() + 240
    while size.read() != 15 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert size.read() == 15


def test_it_is_looked_at_by_one_thread_at_a_time_and_for_a_small_share_of_all_time(tmp_path, monkeypatch):
    may_go_on, looks = threading.Event(), []

    def look(folder):
        looks.append(folder)
        if len(looks) > 1:
            may_go_on.wait(240)
        return len(looks)

    monkeypatch.setattr(module, "folder_bytes", look)
    monkeypatch.setattr(module, "_EVERY_S", 0.0)
    size = FolderSize(tmp_path)
    while len(looks) < 2:
        size.read()
    assert [size.read() for _ in range(50)] == [1] * 50  # as it was before
    time.sleep(0.05)
    may_go_on.set()
    while size.read() != 2:
        time.sleep(0.001)
    time.sleep(0.1)
    assert size.read() == 2
    assert len(looks) == 2  # after at least 0.05 s of looking, nobody looks for 5 s
