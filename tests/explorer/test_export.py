"""The explorer as a folder: one page that runs its own script alone, with data that cannot break out of it."""

import base64
import hashlib
import json
import re
import shutil
import subprocess

import pytest

from bdfl.explorer.export import MANIFEST, CannotBundle, CannotExport, bundle, export_site
from bdfl.explorer.static_files import STATIC_FOLDER
from tests.explorer.fake_library import FakeLibrary
from tests.verifiers.nodejs import require_node

HOSTILE = "</script><img src=x onerror=alert(1)><!-- \u2028 ' \" & ]]>"


def data_of(page):
    """The data inside a page, found as a browser finds them: the element ends at the first </script."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script', page, re.DOTALL | re.IGNORECASE)
    return json.loads(found[1])


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    made = export_site(FakeLibrary(num_runs=2, name=HOSTILE), folder)
    return folder, made, (folder / "index.html").read_text(encoding="utf-8")


def test_everything_that_pages_ask_for_is_inside(exported):
    _, _, page = exported
    data = data_of(page)
    for path in ("/index.json", "/rounds.json", "/blocks.json", "/network.json", "/compare.json", "/what-if.json"):
        assert path in data
    for height in range(1, 6):
        for path in (f"/block/{height}.json", f"/model/{height}.json", f"/what-if/{height}.json"):
            assert path in data
            assert f"{path}?run=1" in data
        assert b"block %d" % height in base64.b64decode(data[f"/raw/{height}"])
        assert f"/network.json?round={height}" in data
        assert f"/network.json?run=1&round={height}" in data
    assert [f"/client/{client}.json" in data for client in range(4)] == [True, True, True, False]
    assert base64.b64decode(data["/raw/genesis"]) == b"genesis"
    assert data["/index.json"]["is_exported"]
    assert not data["/index.json"]["is_live"]
    assert [row["height"] for row in data["/blocks.json"]["blocks"]] == [5, 4, 3, 2, 1]


def test_twins_lie_beside_the_page(exported):
    folder, made, page = exported
    data = data_of(page)
    assert json.loads((folder / "index.json").read_bytes()) == data["/index.json"]
    assert json.loads((folder / "block" / "3.json").read_bytes()) == data["/block/3.json"]
    assert json.loads((folder / "run-1" / "client" / "2.json").read_bytes()) == data["/client/2.json?run=1"]
    assert (folder / "raw" / "2").read_bytes() == base64.b64decode(data["/raw/2"])
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert made.num_files == len(files)
    assert made.num_bytes == sum(path.stat().st_size for path in files if path.name != MANIFEST)


def test_names_cannot_break_out_of_the_page(exported):
    _, _, page = exported
    assert data_of(page)["/index.json"]["name"] == HOSTILE
    assert "<img" not in page
    assert "onerror=alert(1)>" not in page.partition("<script")[0]
    assert len(re.findall(r"</script", page, re.IGNORECASE)) == 2
    assert len(re.findall(r"<script", page, re.IGNORECASE)) == 2


def test_the_policy_allows_the_one_script_and_nothing_else(exported):
    _, _, page = exported
    policy = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)[1]
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)[1]
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]
    for kind, text in (("script", script), ("style", style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert page.index("Content-Security-Policy") < page.index("<style>")
    assert "/static/" not in page.partition("<script")[0]
    assert "\r" not in page


def test_the_page_loads_nothing_and_no_part_ends_its_element(exported):
    _, _, page = exported
    shell, _, rest = page.partition("<style>")
    style, _, body = rest.partition("</style>")
    assert shell.index('<meta charset="utf-8">') < shell.index("Content-Security-Policy")
    assert not re.search(r"<!--|url\(\s*['\"]?(?!data:|#)|@import", style, re.IGNORECASE)
    assert not re.search(r"""(?:src|href)\s*=\s*["']?/""", shell + body.partition("<script")[0])
    assert "<!--" not in re.search(r"<script>(.*?)</script>", page, re.DOTALL)[1]
    assert body.count("</head>") == page.count("</body>") == 1


def test_the_script_is_one_classic_script(exported, tmp_path):
    node = require_node()
    _, _, page = exported
    path = tmp_path / "script.cjs"
    path.write_text(re.search(r"<script>(.*?)</script>", page, re.DOTALL)[1], encoding="utf-8")
    subprocess.run([node, "--check", path], check=True, timeout=240)


def test_only_the_last_blocks_are_written_where_that_is_wanted(tmp_path):
    made = export_site(FakeLibrary(height=30), tmp_path / "site", last=4)
    data = data_of((tmp_path / "site" / "index.html").read_text(encoding="utf-8"))
    assert [height for height in range(1, 31) if f"/block/{height}.json" in data] == [27, 28, 29, 30]
    assert data["/rounds.json"]["num_rounds"] == 30
    assert made.notes == ("client 0: details of the newest 4 of 30 blocks",)


def test_an_empty_run_is_exported(tmp_path):
    export_site(FakeLibrary(height=0), tmp_path / "site")
    data = data_of((tmp_path / "site" / "index.html").read_text(encoding="utf-8"))
    assert data["/blocks.json"]["blocks"] == []


def test_progress_is_told(tmp_path):
    told = []
    export_site(FakeLibrary(), tmp_path / "site", on_progress=lambda done, total: told.append((done, total)))
    assert all(1 <= done <= total for done, total in told)
    assert told == sorted(told)


def test_a_folder_with_something_else_is_refused(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(CannotExport, match="an empty folder expected"):
        export_site(FakeLibrary(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(CannotExport, match="a folder expected"):
        export_site(FakeLibrary(), tmp_path / "mine.txt")


def test_an_older_export_is_replaced_and_nothing_else(tmp_path):
    folder = tmp_path / "site"
    export_site(FakeLibrary(height=9), folder)
    (folder / "mine.txt").write_text("mine")
    export_site(FakeLibrary(height=2), folder)
    assert not (folder / "block" / "9.json").exists()
    assert (folder / "block" / "2.json").exists()
    assert (folder / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["../victim", "/etc/victim", "block/../../victim", "a\\..\\victim"])
def test_a_manifest_cannot_name_files_elsewhere(tmp_path, name):
    folder = tmp_path / "site"
    folder.mkdir()
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (folder / MANIFEST).write_text(json.dumps({"bdfl": "0", "files": [name]}))
    with pytest.raises(CannotExport, match="a file in the folder expected"):
        export_site(FakeLibrary(), folder)
    assert victim.exists()


def test_links_in_an_older_export_are_not_followed(tmp_path):
    folder, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    export_site(FakeLibrary(), folder)
    shutil.rmtree(folder / "block")
    elsewhere.mkdir()
    (elsewhere / "1.json").write_text("mine")
    (folder / "block").symlink_to(elsewhere, target_is_directory=True)
    with pytest.raises(CannotExport, match="leads elsewhere"):
        export_site(FakeLibrary(), folder)
    assert (elsewhere / "1.json").read_text() == "mine"


# The modules as one script


def join(**modules):
    return bundle("first.js", lambda name: modules[name.removesuffix(".js")])


def test_modules_stand_in_the_order_of_their_use():
    text = join(
        first='import { b } from "./second.js";\nimport { c } from "./third.js";\nb(c);\n',
        second='import { c } from "./third.js";\nexport function b() {}\n',
        third="export const c = 1;\nexport async function d() {}\nexport class E {}\n",
    )
    assert "export" not in text
    assert "import" not in text
    assert text.index("const c") < text.index("function b") < text.index("b(c);")
    assert text.count("const c = 1") == 1


@pytest.mark.parametrize(
    "text",
    [
        'import x from "./second.js";', 'import * as x from "./second.js";', 'import { b as c } from "./second.js";',
        'import "./second.js";', 'import { b } from "second";', 'import { b } from "../second.js";',
        'import { b } from "./second.js"', "import { b } from './second.js';", 'import { missing } from "./second.js";',
        "export default 1;", "export { b };", 'export * from "./second.js";', "export let b = 1;", "export var b = 1;",
        'const x = await import("./second.js");', "await x;", "const url = import.meta.url;", "const { a, b } = x;",
        'const a = "</script>";', "let a = 1;\nlet a = 2;", 'import { b } from "./second.js";\nconst b = 1;',
        'const a = "<!--";', "let x;\r",
    ],
)  # fmt: skip
def test_anything_else_in_a_module_is_refused(text):
    with pytest.raises(CannotBundle, match=r"^first\.js:\d+: "):
        join(first=text, second="export const b = 1;")


def test_modules_that_use_each_other_in_a_circle_are_refused():
    with pytest.raises(CannotBundle, match="uses itself"):
        join(first='import { b } from "./second.js";', second='import { a } from "./first.js";')


def test_the_pages_own_modules_fit_into_one_script():
    text = bundle("app.js", lambda name: (STATIC_FOLDER / "js" / name).read_text(encoding="utf-8"))
    unused = [path.name for path in (STATIC_FOLDER / "js").glob("*.js") if f"// {path.name}\n" not in text]
    assert unused == []
