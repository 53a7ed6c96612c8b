"""The browser's own verification: it agrees with the golden chain, and finds every changed byte in its block."""

import base64
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from bdfl.encoding import encode
from bdfl.experiment.run_folder import CHAIN_FOLDER
from bdfl.explorer.static_files import STATIC_FOLDER
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.ledger.sqlite_tables import encode_certificate
from bdfl.node.http import Page as Answer, StatusServer
from benchmarks.ledger.valid_chain import example_genesis
from tests.browser.folders import NUM_ROUNDS, change_parent, change_update, example_scenario, read_genesis, tamper
from tests.browser.looking import Look
from tests.ledger.lying import FIELD_LIES, INITIAL, new_admission, write_field_lie

GOLDEN = json.loads((Path(__file__).parents[1] / "vectors" / "chain.json").read_text(encoding="utf-8"))
_LONE = b"\x91"  # a certificate is stored as a record of one field
SHELL = b"<!doctype html><html lang=en><head><meta charset=utf-8><title>t</title></head><body></body></html>"

# Hands `verifyChain` the bytes given; `flips` are [height, offset] pairs, each judged by itself on the whole chain.
_JUDGE = """async ({genesis, blocks, flips}) => {
  const { verifyChain } = await import("/static/js/verify.js");
  const bytesOf = (text) => Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
  const start = bytesOf(genesis);
  const raw = blocks.map(bytesOf);
  const judge = (all) => verifyChain(async () => start, async (height) => all[height - 1] ?? null, null);
  if (!flips) return judge(raw);
  const found = [];
  for (const [height, offset] of flips) {
    const changed = raw[height - 1].slice();
    changed[offset] ^= 1;
    const { failure } = await judge(raw.map((one, place) => (place === height - 1 ? changed : one)));
    found.push(failure && failure.height);
  }
  return found;
}"""

_EDGE_CASES = """async (cases) => {
  const { isEd25519, isPublicKey } = await import("/static/js/ed25519.js");
  const { fromHexadecimal, importMemberKey } = await import("/static/js/verify.js");
  const judge = async (one) => {
    const [key, signature, message] = ["key", "signature", "message"].map((name) => fromHexadecimal(one[name]));
    return [isPublicKey(key), await isEd25519(key, signature, message, importMemberKey)];
  };
  return Promise.all(cases.map(judge));
}"""


@pytest.fixture(scope="module")
def scripts(chromium) -> Iterator[str]:
    """The explorer's scripts by themselves, on an empty page."""

    def answer(path: Path):
        return lambda: Answer(path.read_bytes(), "text/javascript")

    pages = {f"/static/js/{path.name}": answer(path) for path in (STATIC_FOLDER / "js").glob("*.js")}
    window = StatusServer({"/": lambda: Answer(SHELL, "text/html"), "/favicon.ico": lambda: Answer(b""), **pages})
    yield f"http://{window.address}"
    window.close()


@pytest.fixture
def judge(look, scripts):
    """Judges a genesis and blocks, each with its certificate, in a browser."""
    opened: Look = look(scripts)
    opened.page.goto(scripts)

    def ask(genesis: bytes, blocks: Sequence[bytes], flips: Sequence[tuple[int, int]] | None = None):
        given = {
            "genesis": base64.b64encode(genesis).decode(),
            "blocks": [base64.b64encode(block).decode() for block in blocks],
            "flips": flips and [list(flip) for flip in flips],
        }
        return opened.page.evaluate(_JUDGE, given)

    return ask


def golden_blocks() -> list[bytes]:
    pairs = zip(GOLDEN["blocks"], GOLDEN["certificates"], strict=True)
    return [msgspec.msgpack.encode([bytes.fromhex(block), _LONE + bytes.fromhex(votes)]) for block, votes in pairs]


def stored_blocks(chain: Path) -> list[bytes]:
    with ChainStore.open(chain, read_only=True) as store:
        return [msgspec.msgpack.encode(store.raw_block(height)) for height in range(1, store.height + 1)]


def test_the_browser_agrees_on_the_edge_cases_of_ed25519(look, scripts):
    cases = json.loads((Path(__file__).parents[1] / "vectors" / "vectors.json").read_text(encoding="utf-8"))["ed25519"]
    opened: Look = look(scripts)
    opened.page.goto(scripts)
    found = opened.page.evaluate(_EDGE_CASES, cases)
    assert found == [[case["is_key"], case["is_signed"]] for case in cases]


@pytest.mark.parametrize("place", ["genesis", "admission"])
def test_a_key_of_small_order_is_refused(judge, place):
    small = b"\x01" + bytes(31)
    store = new_admission(small).store
    block = msgspec.msgpack.encode([encode(store.block(1)), encode_certificate(store.certificate(1))])
    genesis = encode(store.genesis)
    if place == "genesis":
        genesis = genesis.replace(store.genesis.members[2].public_key, small)
    failure = judge(genesis, [block])["failure"]
    assert failure["height"] == (0 if place == "genesis" else 1)
    assert "small order" in failure["found"]


def test_the_golden_chain_is_right_and_has_the_golden_digests(judge):
    verdict = judge(bytes.fromhex(GOLDEN["genesis"]), golden_blocks())
    assert verdict["failure"] is None
    assert (verdict["state"], verdict["height"]) == ("ok", 8)
    assert verdict["chain"] == GOLDEN["found"]["chain"]
    assert verdict["digests"][1:] == GOLDEN["found"]["digests"]
    assert verdict["numSignatures"] > 50


def test_a_changed_byte_is_found_in_its_own_block(judge):
    blocks = golden_blocks()
    flips = [(height, offset) for height, raw in enumerate(blocks, 1) for offset in range(3, len(raw), 61)]
    found = judge(bytes.fromhex(GOLDEN["genesis"]), blocks, flips)
    assert len(flips) > 100
    assert [(flip, where) for flip, where in zip(flips, found, strict=True) if where != flip[0]] == []


def test_a_whole_run_is_right(judge, run):
    verdict = judge(encode(read_genesis(run)), stored_blocks(run / CHAIN_FOLDER))
    assert verdict["failure"] is None
    assert verdict["height"] == NUM_ROUNDS


@pytest.mark.parametrize(("kind", "rule"), [("update", "body"), ("parent", "link")])
def test_a_tampered_chain_is_broken_where_it_was_tampered_with(judge, run, tmp_path, kind, rule):
    genesis = read_genesis(run)
    change = change_update if kind == "update" else change_parent(example_scenario(), genesis)
    verdict = judge(encode(genesis), stored_blocks(tamper(run, tmp_path / "tampered", 5, change) / CHAIN_FOLDER))
    assert (verdict["failure"]["height"], verdict["failure"]["rule"]) == (5, rule)
    assert verdict["height"] == 4


@pytest.mark.parametrize("field", FIELD_LIES)
def test_expected_is_what_the_rules_require_and_found_what_the_block_says(judge, tmp_path, field):
    lie = FIELD_LIES[field]
    due, wrong = write_field_lie(tmp_path / "chain", lie)
    failure = judge(encode(example_genesis(INITIAL)), stored_blocks(tmp_path / "chain"))["failure"]
    assert (failure["height"], failure["rule"]) == (3, lie.browser_rule)
    assert lie.read_in_browser(due) in failure["expected"]
    assert lie.read_in_browser(wrong) in failure["found"]
    assert lie.read_in_browser(wrong) not in failure["expected"]
    assert lie.read_in_browser(due) not in failure["found"]
