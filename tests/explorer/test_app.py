"""The explorer's server: every page and its twin, nothing but reading, nothing outside its list, no foreign names."""

import gzip
import json
import os
import socket
import subprocess
import sys
import time

import pytest

pytest.importorskip("starlette")

from bdfl.errors import BdflError
from bdfl.explorer.server import CONTENT_POLICY, CannotServe, ExplorerServer
from bdfl.explorer.static_files import StaticFiles
from tests.explorer.asking import TIMEOUT_S, ask
from tests.explorer.fake_library import FakeLibrary
from tests.explorer.serving import serve_in_background

PAGES = (
    "/",
    "/network",
    "/blocks",
    "/block/3",
    "/client/1",
    "/model/3",
    "/model/0",
    "/what-if/3",
    "/what-if",
    "/compare",
)
TWINS = tuple("/index.json" if page == "/" else f"{page}.json" for page in PAGES)
OTHERS = ("/rounds.json", "/frontier.json", "/verify.json")


@pytest.fixture(scope="module")
def port():
    with serve_in_background(FakeLibrary(num_runs=2)) as server:
        yield server.port


@pytest.mark.parametrize("page", PAGES)
def test_every_page_is_the_shell(port, page):
    answer = ask(port, page)
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.content.startswith(b"<!doctype html>")


@pytest.mark.parametrize("twin", TWINS + OTHERS)
def test_every_page_has_a_twin(port, twin):
    answer = ask(port, twin)
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    json.loads(answer.content)


def test_raw_bytes_are_as_stored(port):
    assert ask(port, "/raw/genesis").content == b"genesis"
    answer = ask(port, "/raw/2")
    assert b"block 2" in answer.content
    assert answer.headers["content-type"] == "application/octet-stream"


@pytest.mark.parametrize(
    "path",
    [
        "/block/6", "/block/0", "/block/-1", "/block/x", "/block/1.0", "/block/99999999999999999999", "/client/3",
        "/block/" + "9" * 5000, "/block/%D9%A3", "/model/6", "/what-if/7", "/?run=2", "/block/1?run=9",
    ],
)  # fmt: skip
def test_a_page_of_what_is_not_there_is_the_shell_and_not_found(port, path):
    answer = ask(port, path)
    assert answer.status == 404
    assert answer.content.startswith(b"<!doctype html>")


@pytest.mark.parametrize(
    "path",
    [
        "/block/6.json", "/block/0.json", "/block/x.json", "/block/" + "9" * 5000 + ".json", "/index.json?run=2",
        "/client/9.json", "/raw/77", "/raw/x", "/nothing", "/block", "/block/1/", "/static/", "/events?run=2",
        "/index.html", "/js/app.js",
    ],
)  # fmt: skip
def test_what_is_not_there_is_said_in_one_line(port, path):
    answer = ask(port, path)
    assert answer.status == 404
    assert set(json.loads(answer.content)) == {"error"}


@pytest.mark.parametrize(
    "query",
    [
        "rounds.json?first=x", "rounds.json?first=-1", "rounds.json?points=5000", "rounds.json?points=0",
        "what-if/3.json?tradeoff=nan", "what-if/3.json?tradeoff=inf", "what-if/3.json?tradeoff=1e999",
        "what-if/3.json?client=0.5", "what-if/3.json?tradeoff=1_0", "what-if/3.json?tradeoff=1e7",
        "index.json?run=x", "network.json?round=" + "9" * 5000,
        "model/3.json?without=%00", "rounds.json?last=%F0%9F%8D%8E",
    ],
)  # fmt: skip
def test_bad_parameters_are_refused_in_one_line(port, query):
    answer = ask(port, f"/{query}")
    assert answer.status == 400
    assert len(json.loads(answer.content)["error"]) < 200


def test_parameters_reach_the_library(port):
    found = json.loads(ask(port, "/what-if/3.json?tradeoff=2.5&client=1&gain_db=-90").content)
    assert found["settings"]["tradeoff"] == 2.5
    assert found["settings"]["client"] == 1
    assert found["settings"]["gain_db"] == -90
    assert json.loads(ask(port, "/rounds.json?first=2&last=3").content)["round"] == [2, 3]
    assert json.loads(ask(port, "/index.json?run=1").content)["run"] == 1


# Who may ask, and how


@pytest.mark.parametrize(
    "name",
    [
        "evil.example", "evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example:{port}", "127.0.0.2",
        "[::2]:{port}", "[::ffff:127.0.0.1]:{port}", "localhost:1", "127.0.0.1:{port}:{port}", "127.0.0.1:{port}@x",
        "0.0.0.0:{port}", "2130706433", " ", "127.0.0.1, evil.example",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/", "/index.json", "/events", "/static/style.css", "/nothing"])
def test_foreign_names_are_refused(port, name, path):
    answer = ask(port, path, host=name.format(port=port))
    assert answer.status in (400, 403)
    assert b"doctype" not in answer.content
    assert b"clients" not in answer.content


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST:{port}", "127.0.0.1", "[::1]:{port}", "::1"])
def test_own_names_are_answered(port, name):
    assert ask(port, "/index.json", host=name.format(port=port)).status == 200


def test_a_request_without_a_name_or_with_two_is_refused(port):
    assert ask(port, "/index.json", sends_host=False).status in (400, 403)
    assert ask(port, "/index.json", headers=[f"Host: localhost:{port}"]).status in (400, 403)
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as line:  # HTTP/1.0 may leave it out
        line.sendall(b"GET /index.json HTTP/1.0\r\n\r\n")
        assert b" 403 " in line.recv(100)


def test_a_forwarded_name_changes_nothing(port):
    headers = ["X-Forwarded-Host: localhost", "Forwarded: host=localhost"]
    assert ask(port, "/index.json", host="evil.example", headers=headers).status == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"])
@pytest.mark.parametrize("path", ["/", "/index.json", "/events", "/static/style.css"])
def test_nothing_but_get_and_head_is_answered(port, method, path):
    answer = ask(port, path, method=method)
    assert answer.status == 405
    assert answer.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", [*PAGES, *TWINS, "/raw/1", "/static/style.css", "/events", "/nothing"])
def test_head_is_get_without_content(port, path):
    answer = ask(port, path, method="HEAD")
    assert answer.content == b""
    if path != "/events":
        whole = ask(port, path)
        assert answer.status == whole.status
        assert answer.headers["content-length"] == whole.headers["content-length"]


@pytest.mark.parametrize(
    ("path", "method", "host"),
    [
        ("/", "GET", ""), ("/index.json", "GET", ""), ("/static/style.css", "GET", ""), ("/nothing", "GET", ""),
        ("/block/77", "GET", ""), ("/", "POST", ""), ("/", "GET", "evil.example"), ("/raw/1", "GET", ""),
        ("/events", "HEAD", ""), ("/rounds.json?first=x", "GET", ""), ("/static/..%2fapp.py", "GET", ""),
    ],
)  # fmt: skip
def test_every_answer_says_what_a_browser_may_do(port, path, method, host):
    headers = ask(port, path, method=method, host=host).headers
    assert headers["content-security-policy"] == CONTENT_POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cross-origin-opener-policy"] == "same-origin"
    assert "cache-control" in headers
    assert "server" not in headers


def test_an_upgrade_is_not_followed(port):
    headers = ["Upgrade: websocket", "Sec-WebSocket-Key: AAAA", "Sec-WebSocket-Version: 13"]
    assert ask(port, "/events", method="HEAD", headers=headers).status == 200


# Files


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static/..%5capp.py",
        "/static/%252e%252e/app.py", "/static//etc/passwd", "/static/%2fetc%2fpasswd", "/static/./index.html",
        "/static/js/../index.html", "/static/index.html%00", "/static/index.html/", "/static/INDEX.HTML",
        "/../../../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/static/js", "/static/js/", "/static/.",
        "/raw/..%2f..%2fchain.sqlite", "/block/..%2f1.json", "//etc/passwd", "/static/C:%5cwindows%5cwin.ini",
        "/static/file:///etc/passwd", "/static/js/%00app.js", "/static/\xff",
    ],
)  # fmt: skip
def test_no_path_leads_out_of_the_list(port, path):
    answer = ask(port, path)
    assert answer.status in (400, 404)
    assert b"root:" not in answer.content
    assert b"import" not in answer.content


def test_every_listed_file_is_served(port):
    names = StaticFiles().names
    assert "index.html" in names
    for name in names:
        answer = ask(port, f"/static/{name}")
        assert answer.status == 200
        again = ask(port, f"/static/{name}", headers=[f"If-None-Match: {answer.headers['etag']}"])
        assert again.status == 304
        assert again.content == b""


def test_links_and_what_comes_later_are_not_listed(tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    folder = tmp_path / "static"
    (folder / "js").mkdir(parents=True)
    (folder / "js" / "app.js").write_text("1")
    (folder / "link.txt").symlink_to(secret)
    (folder / "up").symlink_to(tmp_path, target_is_directory=True)
    (folder / "notes.py").write_text("1")
    files = StaticFiles(folder)
    assert files.names == ("js/app.js",)
    (folder / "late.txt").write_text("late")
    for name in ("late.txt", "link.txt", "up/secret.txt", "../secret.txt", str(secret), "", "js", "notes.py"):
        assert files.find(name) is None
    os.utime(folder / "js" / "app.js", ns=(1, 1))
    (folder / "js" / "app.js").write_text("22")
    assert files.find("js/app.js").content == b"22"


def test_large_answers_are_compressed_where_that_is_understood():
    with serve_in_background(FakeLibrary(height=1000)) as server:
        plain = ask(server.port, "/rounds.json")
        packed = ask(server.port, "/rounds.json", headers=["Accept-Encoding: gzip, br"])
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.content) == plain.content
    assert len(packed.content) < len(plain.content) / 4


# What goes wrong


def test_an_error_inside_is_no_page_of_code(caplog):
    library = FakeLibrary()

    def fail(run):
        raise ZeroDivisionError("secret")

    library.overview = fail
    with serve_in_background(library) as server:
        answer = ask(server.port, "/index.json")
        assert answer.status == 500
        assert b"secret" not in answer.content
        assert answer.headers["content-security-policy"] == CONTENT_POLICY
        assert ask(server.port, "/rounds.json").status == 200
    assert "ZeroDivisionError" in caplog.text


def test_an_expected_error_without_a_status_is_one_line():
    library = FakeLibrary()

    def fail(run):
        raise BdflError("the disk\nis full")

    library.overview = fail
    with serve_in_background(library) as server:
        answer = ask(server.port, "/index.json")
    assert answer.status == 500
    assert json.loads(answer.content) == {"error": "the disk is full"}


def test_slow_questions_do_not_hold_up_quick_ones():
    library = FakeLibrary()
    is_over = []

    def wait(run, height, settings):
        while not is_over:
            time.sleep(0.01)
        return {}

    library.what_if = wait
    with serve_in_background(library) as server:
        lines = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(8)]
        try:
            for line in lines:
                line.sendall(f"GET /what-if/1.json HTTP/1.1\r\nHost: localhost:{server.port}\r\n\r\n".encode())
            assert ask(server.port, "/index.json").status == 200
        finally:
            is_over.append(True)
            for line in lines:
                line.close()


def test_a_taken_address_is_said_in_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        with pytest.raises(CannotServe, match=f"127.0.0.1:{number}: Address already in use"):
            ExplorerServer(FakeLibrary(), port=number)


def test_a_server_ends_while_viewers_watch():
    with serve_in_background(FakeLibrary()) as server:
        line = socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S)
        line.sendall(f"GET /events HTTP/1.1\r\nHost: localhost:{server.port}\r\n\r\n".encode())
        assert b"200 OK" in line.recv(1000)
        started_s = time.monotonic()
    assert time.monotonic() - started_s < 60  # it did not wait for them
    line.close()


def test_the_server_loads_nothing_heavy():
    code = (
        "import sys, bdfl.explorer.server, bdfl.explorer.library\n"
        "heavy = {'torch', 'scipy', 'pyarrow', 'matplotlib', 'sklearn', 'pandas', 'rich', 'typer'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert found.stdout.strip() == "[]"
