"""What others are given: JSON lines with everything by name, and proofs that stand alone."""

import json

import pytest

from bdfl.audit.export import export_lines, plain_block
from bdfl.audit.lineage import NotOnChain, prove_update
from bdfl.audit.summary import summarise_chain
from bdfl.ledger.block import chain_id
from campaigns.fuzz.records import record_kinds
from tests.ledger.lying import new_maker
from tests.vectors import independent_format
from tests.vectors.independent_format import Record
from tests.vectors.make_vectors import make_chain


def test_lines_hold_the_genesis_and_every_block_by_name():
    maker = make_chain()
    first, *blocks = (json.loads(line) for line in export_lines(maker.store))
    assert first["type"] == "genesis"
    assert first["chain"] == chain_id(maker.store.genesis).hex()
    assert first["genesis"]["members"][1]["limits"]["samples"] == 200
    assert [block["type"] for block in blocks] == ["block"] * 8
    assert [block["height"] for block in blocks] == list(range(1, 9))
    assert blocks[1]["digest"] == blocks[2]["block"]["header"]["parent"]
    assert blocks[1]["block"]["body"]["entries"][0]["kind"] == "two-votes"
    assert blocks[4]["block"]["body"]["entries"][0]["change"]["kind"] == "admission"
    assert blocks[5]["block"]["body"]["entries"][0]["change"] == {"kind": "removal", "number": 2}
    assert [signed["vote"]["voter"] for signed in blocks[1]["certificate"]] == [0, 1, 3]
    assert b"\n" not in b"".join(export_lines(maker.store))


def test_a_block_by_name_has_every_field_of_its_records():
    maker = make_chain()
    found = plain_block(maker.store.block(2), maker.store.certificate(2))
    block = next(kind for kind in record_kinds() if kind.__name__ == "Body")
    assert set(found["block"]["body"]) == set(block.__struct_fields__)


def test_a_proof_can_be_checked_by_somebody_who_has_nothing_else():
    maker = new_maker()
    maker.grow(3)
    maker.store.prune(1)
    given = json.loads(json.dumps(prove_update(maker.store, 1, 2).to_plain()))
    siblings = [bytes.fromhex(node) for node in given["proof"]["siblings"]]
    root = independent_format.proven_root(
        bytes.fromhex(given["leaf"]), Record(**(given["proof"] | {"siblings": siblings}))
    )
    header = independent_format.decode(bytes.fromhex(given["header_bytes"]), "Header")
    assert header.body == root
    name = independent_format.block_digest(header, bytes.fromhex(given["nonce"]))
    assert {signed["vote"]["block"] for signed in given["certificate"]} == {name.hex()}


def test_what_is_not_in_a_block_cannot_be_proven():
    chain = make_chain().store
    with pytest.raises(NotOnChain, match="block 2: no update of client 3 in it, only of clients"):
        prove_update(chain, 2, 3)
    with pytest.raises(NotOnChain, match="client 9: no member"):
        prove_update(chain, 2, 9)


def test_a_summary_counts_what_members_did():
    summary = summarise_chain(make_chain().store)
    assert [block.missing for block in summary.blocks] == [(), (3,), (), (0, 1, 3), (0, 1, 3), (), (), ()]
    assert [block.declined for block in summary.blocks] == [(), (1,), *[()] * 6]
    assert [block.offenders for block in summary.blocks] == [(), (2,), *[()] * 6]
    assert [block.height for block in summary.blocks if block.is_empty] == [4, 5]
    assert [member.trained for member in summary.members] == [5, 4, 2, 3, 1]
    assert [member.missing for member in summary.members] == [2, 2, 0, 3, 0]
    assert [member.in_certificates for member in summary.members] == [6, 8, 5, 6, 2]
    assert (summary.quorum, summary.num_parameters) == (3, 8)
    empty = summarise_chain(new_maker().store)
    assert (empty.blocks, empty.tip) == ((), empty.chain)
