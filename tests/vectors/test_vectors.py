"""The golden vectors are what the code makes, and what somebody who has only read FORMAT.md understands."""

import ast
import json
import struct
from copy import deepcopy
from pathlib import Path

import msgspec
import pytest

from bdfl import identity
from bdfl.encoding import BadEncoding, decode, encode
from bdfl.identity import Place, is_public_key
from bdfl.ledger.merkle import MerkleProof, proven_root
from bdfl.ledger.store import MemoryStore
from bdfl.ledger.verify import verify_chain
from campaigns.fuzz.mutations import Mutator
from campaigns.fuzz.records import record_kinds
from tests.ledger.lying import new_admission
from tests.vectors import independent_format, independent_models, independent_verifier
from tests.vectors.format_tables import documented_kinds, with_tables
from tests.vectors.independent_format import Record, Wrong
from tests.vectors.make_vectors import (
    CHAIN,
    CHAINS,
    FOLDER,
    FORMAT,
    VECTORS,
    describe_chain,
    make_chain,
    make_vectors,
    render,
)

VECTORS_GIVEN = json.loads(VECTORS.read_text(encoding="utf-8"))
CHAIN_GIVEN = json.loads(CHAIN.read_text(encoding="utf-8"))
NUM_MUTATIONS = 300  # of each part of the chain


def plain(value):
    """As `value` of the vectors: by name, bytes in hexadecimal."""
    if isinstance(value, Record):
        return {name: plain(item) for name, item in vars(value).items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value


def named_parameters(value):
    """The parameters of a scheduler as pairs, which is how they stand in the vectors."""
    if isinstance(value, dict):
        if set(value) == {"name", "value"}:
            return [value["name"], value["value"]]
        return {name: named_parameters(item) for name, item in value.items()}
    return [named_parameters(item) for item in value] if isinstance(value, list) else value


def test_the_committed_vectors_are_what_the_code_makes():
    assert VECTORS.read_text(encoding="utf-8") == render(make_vectors()), "python tests/vectors/make_vectors.py"
    for path, aggregation in CHAINS.items():
        assert path.read_text(encoding="utf-8") == render(describe_chain(make_chain(aggregation)))


def test_the_tables_of_the_format_are_made_of_the_records_and_none_is_left_out():
    text = FORMAT.read_text(encoding="utf-8")
    assert text == with_tables(text), "python tests/vectors/make_vectors.py"
    assert documented_kinds() == set(record_kinds())
    assert {entry["kind"] for entry in VECTORS_GIVEN["encodings"]} == {kind.__name__ for kind in record_kinds()}


def test_the_independent_verifier_imports_nothing_of_bdfl():
    allowed = {
        "json",
        "pathlib",
        "sqlite3",
        "struct",
        "sys",
        "decimal",
        "hashlib",
        "itertools",
        "math",
        "re",
        "cryptography",
        "tests",
    }
    for name in ("independent_format", "independent_models", "independent_verifier"):
        tree = ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module] if isinstance(node, ast.ImportFrom) else []
            for module in modules:
                assert module.split(".")[0] in allowed
                assert not module.startswith("tests") or module.startswith("tests.vectors.independent")


@pytest.mark.parametrize("entry", VECTORS_GIVEN["encodings"], ids=lambda entry: entry["kind"])
def test_every_record_is_read_as_meant_and_written_as_it_was(entry):
    data = bytes.fromhex(entry["bytes"])
    found = independent_format.decode(data, entry["kind"])
    assert named_parameters(plain(found)) == entry["value"]
    assert found.bytes == data
    assert independent_format.sha(data).hex() == entry["digest"]
    kind = next(kind for kind in record_kinds() if kind.__name__ == entry["kind"])
    assert encode(decode(data, kind, len(data))) == data


@pytest.mark.parametrize("entry", VECTORS_GIVEN["bad_encodings"], ids=lambda entry: entry["why"])
def test_what_is_not_canonical_is_refused(entry):
    data = bytes.fromhex(entry["bytes"])
    assert entry["kind"] == "Place"
    with pytest.raises(Wrong):
        independent_format.decode(data, "Place")
    with pytest.raises(BadEncoding):
        decode(data, Place, 1000)


@pytest.mark.parametrize("entry", VECTORS_GIVEN["statements"], ids=lambda entry: entry["meaning"])
def test_statements_are_signed_in_their_place(entry):
    public_key = bytes.fromhex(VECTORS_GIVEN["keys"][entry["member"]]["public"])
    place, content = (bytes.fromhex(entry[name]) for name in ("place", "content"))
    place = independent_format.to_list(independent_format.decode(place, "Place"))
    meaning, signature = entry["meaning"], bytes.fromhex(entry["signature"])
    assert independent_format.statement(meaning, place, content).hex() == entry["statement"]
    independent_format.require_signed(public_key, signature, meaning, place, content, "here")
    for other in (("vote" if meaning != "vote" else "block", place), (meaning, [place[0], place[1] + 1, place[2]])):
        with pytest.raises(Wrong):
            independent_format.require_signed(public_key, signature, *other, content, "elsewhere")


@pytest.mark.parametrize("entry", VECTORS_GIVEN["ed25519"], ids=lambda entry: entry["why"])
def test_all_verifiers_agree_on_the_edge_cases_of_ed25519(entry):
    key, signature, message = (bytes.fromhex(entry[name]) for name in ("key", "signature", "message"))
    for verifier in (identity, independent_format):
        assert verifier.is_signed(key, signature, message) == entry["is_signed"]
    assert is_public_key(key) == independent_format.is_key(key) == entry["is_key"]


@pytest.mark.parametrize("entry", VECTORS_GIVEN["ed25519"], ids=lambda entry: entry["why"])
def test_a_bad_key_is_refused_in_genesis_and_admissions(entry):
    key = bytes.fromhex(entry["key"])
    admitted = new_admission(key)
    found = verify_chain(admitted.store).failure
    assert (found is None) == entry["is_key"]
    assert found is None or (found.block, found.rule) == (1, "change-public-keys")
    assert is_accepted(describe_chain(admitted)) == entry["is_key"]
    genesis = admitted.store.genesis
    members = (msgspec.structs.replace(genesis.members[0], public_key=key), *genesis.members[1:])
    genesis = msgspec.structs.replace(genesis, members=members)
    store = MemoryStore(genesis, admitted.store.get_blob(genesis.model.initial))
    found = verify_chain(store).failure
    assert (found is None) == entry["is_key"]
    assert found is None or (found.block, found.rule) == (0, "public-keys")
    empty = {"blocks": [], "certificates": [], "blobs": describe_chain(admitted)["blobs"]}
    assert is_accepted({"genesis": encode(genesis).hex(), **empty}) == entry["is_key"]


def is_accepted(given):
    try:
        independent_verifier.verify(given)
    except Wrong as error:
        if str(error) != "public-keys":
            raise
        return False
    return True


def test_a_proof_of_one_place_is_none_of_another():
    for entry in VECTORS_GIVEN["merkle"]:
        leaves = [bytes.fromhex(leaf) for leaf in entry["leaves"]]
        for leaf, proof in zip(leaves, entry["proofs"], strict=True):
            for count in range(1, 9):
                for index in range(count):
                    if (index, count) != (proof["index"], proof["count"]):
                        siblings = [bytes.fromhex(node) for node in proof["siblings"]]
                        assert leads_to(leaf, index, count, siblings) != bytes.fromhex(entry["root"])


def leads_to(leaf, index, count, siblings):
    """The root that both verifiers compute; none: the proof has no meaning."""
    try:
        found = independent_format.proven_root(leaf, Record(index=index, count=count, siblings=siblings))
    except Wrong:
        found = None
    assert proven_root(leaf, MerkleProof(index, count, tuple(siblings))) == found
    return found


@pytest.mark.parametrize("entry", VECTORS_GIVEN["merkle"], ids=lambda entry: f"{len(entry['leaves'])}-leaves")
def test_trees_and_proofs_lead_to_the_root(entry):
    leaves = [bytes.fromhex(leaf) for leaf in entry["leaves"]]
    root = bytes.fromhex(entry["root"])
    assert independent_format.merkle_root(leaves) == root
    for leaf, proof in zip(leaves, entry["proofs"], strict=True):
        siblings = [bytes.fromhex(node) for node in proof["siblings"]]
        given = Record(**(proof | {"siblings": siblings}))
        assert independent_format.proven_root(leaf, given) == root
        assert independent_format.proven_root(leaf + b"x", given) != root


@pytest.mark.parametrize("entry", VECTORS_GIVEN["work"], ids=lambda entry: f"{entry['kind']}-{entry['nonce'][:4]}")
def test_work_is_hashed_as_described(entry):
    hashed = independent_format.work_hash(entry["kind"], bytes.fromhex(entry["seal"]), bytes.fromhex(entry["nonce"]))
    assert hashed.hex() == entry["hash"]
    assert int(entry["hash"], 16) < 2**256 // entry["serves"]
    assert int(entry["hash"], 16) >= 2**256 // (entry["serves"] + 1)


@pytest.mark.parametrize("entry", VECTORS_GIVEN["aggregation"], ids=lambda entry: entry["rule"])
def test_every_rule_of_aggregation_gives_these_bits(entry):
    updates = [list(struct.unpack("<8f", bytes.fromhex(update))) for update in entry["updates"]]
    found = independent_models.aggregate(entry["rule"], entry["faulty"], updates, entry["samples"])
    assert struct.pack("<8f", *found).hex() == entry["result"]


@pytest.mark.parametrize("path", CHAINS, ids=lambda path: path.stem)
def test_the_independent_verifier_accepts_the_chain_and_finds_the_same_state(path):
    given = json.loads(path.read_text(encoding="utf-8"))
    chain = independent_verifier.verify(given)
    found = given["found"]
    assert chain.id.hex() == found["chain"]
    assert (chain.tip.hex(), chain.model.hex()) == (found["digests"][-1], found["model"])
    for name in ("queue_nano", "misses", "rests_until", "epsilon_micro", "difficulty", "times_ms"):
        assert getattr(chain, name) == found[name]
    assert sorted(chain.offenders) == found["offenders"]
    assert sorted(chain.now.active) == found["active"]


def test_the_independent_verifier_refuses_another_genesis():
    original = bytes.fromhex(CHAIN_GIVEN["genesis"])
    mutator = Mutator([original], seed=0)
    for _ in range(NUM_MUTATIONS):
        _, mutated = mutator.mutate()
        if mutated != original:
            with pytest.raises(Wrong):
                independent_verifier.verify(CHAIN_GIVEN | {"genesis": mutated.hex()})


@pytest.mark.parametrize(
    ("part", "place"),
    [*(("blocks", place) for place in range(8)), *(("certificates", place) for place in (1, 3, 5, 6))],
)
def test_the_independent_verifier_refuses_a_block_or_certificate_with_any_change(part, place):
    def until(end):
        return {name: value[:end] if isinstance(value, list) else value for name, value in CHAIN_GIVEN.items()}

    before = independent_verifier.verify(until(place))
    original = bytes.fromhex(CHAIN_GIVEN[part][place])
    mutator = Mutator([original], seed=place)
    for _ in range(NUM_MUTATIONS):
        _, mutated = mutator.mutate()
        if mutated != original:
            given = CHAIN_GIVEN | {part: [*CHAIN_GIVEN[part][:place], mutated.hex()]}
            with pytest.raises(Wrong):
                independent_verifier.add_block(deepcopy(before), given, place)


def test_the_independent_verifier_refuses_a_model_with_one_bit_changed():
    block = independent_format.decode(bytes.fromhex(CHAIN_GIVEN["blocks"][0]), "Block")
    name = block.body.updates[0].update.model.hex()
    data = bytearray.fromhex(CHAIN_GIVEN["blobs"][name])
    data[-1] ^= 1
    with pytest.raises(Wrong, match="blob-digest"):
        independent_verifier.verify(CHAIN_GIVEN | {"blobs": CHAIN_GIVEN["blobs"] | {name: data.hex()}})


def test_the_folder_holds_nothing_that_is_not_described():
    assert {path.suffix for path in Path(FOLDER).iterdir() if path.is_file()} == {".py", ".json", ".md"}


@pytest.mark.parametrize("path", [path for path in CHAINS if path != CHAIN], ids=lambda path: path.stem)
def test_the_independent_verifier_refuses_moments_with_one_bit_changed(path):
    given = json.loads(path.read_text(encoding="utf-8"))
    name = independent_format.decode(bytes.fromhex(given["blocks"][0]), "Block").body.model.hex()
    data = bytearray.fromhex(given["blobs"][name])
    data[-1] ^= 1
    with pytest.raises(Wrong, match="model-stored"):
        independent_verifier.verify(given | {"blobs": given["blobs"] | {name: data.hex()}})
