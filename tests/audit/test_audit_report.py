"""An audit says what was verified, what is taken on trust and what everybody did; signed, it cannot be changed."""

import json
import subprocess
import sys
from html.parser import HTMLParser

import msgspec
import numpy as np
import pytest

from bdfl.audit.audit_report import (
    AuditFile,
    AuditReport,
    AuditSignature,
    BadAudit,
    Check,
    Event,
    MemberAudit,
    audit_chain,
    decode_audit,
    seal_audit,
)
from bdfl.audit.lineage import show_utc
from bdfl.audit.summary import Judgement
from bdfl.encoding import encode
from bdfl.errors import MissingExtra, other_format
from bdfl.federation.genesis_file import BadGenesisFile, GenesisFile
from bdfl.identity import Meaning, is_signed, statement_digest
from bdfl.ledger.block import chain_id
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.ledger.store import MemoryStore
from bdfl.ledger.verify import verify_chain
from bdfl.report.audit_page import render_audit
from benchmarks.ledger.valid_chain import ChainMaker, example_genesis, example_signer, example_weights
from tests.audit.test_privacy import grown
from tests.ledger.lying import INITIAL, SIGNERS, commit_lie, new_maker, replaced
from tests.ledger.test_verify_lies import LIES
from tests.vectors.make_vectors import make_chain

NOW = "2026-11-18T12:00:00Z"
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b[2J&amp;"
AUDITOR = example_signer(40)


def audit(store, **settings) -> AuditReport:
    return audit_chain(store, audited_at=NOW, **settings)


def counts(report: AuditReport) -> dict[str, tuple[int, int | None]]:
    return {check.subject: (check.count, check.of) for check in report.checks}


def subjects(report: AuditReport) -> list[str]:
    return [one.subject for one in report.trusted]


def text_of(page: str) -> str:
    parser, parts = HTMLParser(), []
    parser.handle_data = parts.append
    parser.feed(page)
    return " ".join(" ".join(parts).split())


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    maker = new_maker()
    maker.grow(3)
    return maker.store


# What it says


def test_a_valid_chain_is_covered_to_its_tip(store):
    report = audit(store)
    assert report.is_right
    assert (report.height, report.verified, report.failure) == (3, 3, None)
    assert report.chain == chain_id(store.genesis).hex()
    assert report.tip == store.block(3).digest.hex()
    assert report.founded <= report.first_block <= report.last_block == show_utc(store.block(3).header.time_ms)
    assert report.model == store.block(3).body.model.hex()
    found = counts(report)
    assert found["Links"] == found["Certificates"] == found["Queues"] == found["Models"] == (3, 3)
    assert found["Signatures"] == (verify_chain(store).num_signatures, None)
    assert found["Updates"] == (12, None)
    assert [row.weight for row in report.lineage.contributions] == [0.1, 0.2, 0.3, 0.4]
    assert report.lineage.model == report.model


def test_what_a_chain_cannot_prove_is_taken_on_trust(store):
    asked = ["Who the members are", "The only history", "Data", "Training", "Measured receipts", "Time"]
    assert set(asked) < set(subjects(audit(store)))
    assert "Pruned models" not in subjects(audit(store))


def test_every_members_part_is_counted():
    report = audit(make_chain().store)
    parts = [one.part for one in report.members]
    assert [one.trained for one in parts] == [5, 4, 2, 3, 1]
    assert [one.in_certificates for one in parts] == [6, 8, 5, 6, 2]
    assert all(one.scheduled == one.trained + one.declined + one.missing for one in parts)
    assert sum(one.proposed for one in parts) == report.verified == 8
    assert [(one.since, one.until) for one in parts] == [(1, None), (1, None), (1, 7), (1, None), (7, None)]
    assert [one.rounds for one in report.members] == [8, 8, 7, 8, 2]
    assert report.members[4].participation == 1 / 2
    offences = [event for event in report.events if event.member is not None]
    assert [(event.block, event.member, event.kind) for event in offences] == [(2, 2, "two-votes")]
    assert [event.block for event in report.events if event.kind == "membership"] == [5, 6]
    assert counts(report)["Evidence"] == (1, None)
    assert counts(report)["Changes of membership"] == (2, None)


def test_absence_from_certificates_is_not_called_absence():
    maker = new_maker()
    for _ in range(3):
        updates = [maker.sign_update(client, example_weights(client)) for client in maker.state.schedule.selected]
        block = maker.make_block(updates, [maker.sign_report(client) for client in range(4)])
        maker.commit(block, voters=[0, 1, 2])
    report = audit(maker.store)
    assert report.members[3].part.in_certificates == 0
    assert "absence from certificates is not absence" in report.certificates_note
    assert report.certificates_note in text_of(render_audit(seal_audit(report)))


@pytest.mark.parametrize("name", ["another model", "a queue longer by 1e-9", "more samples", "an update twice",
                                  "too few votes for the parent", "another schedule played"])  # fmt: skip
def test_an_invalid_chain_is_covered_up_to_the_block_that_breaks_a_rule(name):
    maker = new_maker()
    maker.grow(2)
    tip = maker.state.tip
    commit_lie(maker, LIES[name].change)
    report = audit(maker.store)
    assert not report.is_right
    assert (report.height, report.verified, report.tip) == (3, 2, tip.hex())
    assert report.failure == verify_chain(maker.store).failure
    assert report.failure.expected != report.failure.found
    assert counts(report)["Links"] == (2, 3)
    assert [one.part.trained for one in report.members] == [2, 2, 2, 2]
    assert "Later blocks" in subjects(report)
    shown = text_of(render_audit(seal_audit(report)))
    assert "The chain is not valid: block 3" in shown
    assert report.failure.rule in shown


def test_a_chain_without_blocks_can_be_audited():
    report = audit(new_maker().store)
    assert (report.verified, report.lineage, report.tip) == (0, None, report.chain)
    assert "Nobody has trained this model" in text_of(render_audit(seal_audit(report)))


def test_a_pruned_chain_says_which_models_were_not_recomputed(store):
    maker = new_maker()
    maker.grow(4)
    whole = audit(maker.store)
    maker.store.prune(1)
    report = audit(maker.store)
    assert report.is_right
    assert report.checkpoint == 3
    assert counts(report)["Models"] == (1, 4)
    assert counts(report)["Merkle proofs"] == (3, 3)
    assert "Pruned models" in subjects(report)
    assert (report.members, report.lineage) == (whole.members, whole.lineage)


def test_weights_that_pruning_took_away_are_unknown_and_the_rest_is_there():
    genesis = example_genesis(INITIAL)
    law = replaced(genesis.law, aggregation="median", min_updates=3)
    maker = ChainMaker(MemoryStore(replaced(genesis, law=law), INITIAL), SIGNERS)
    maker.grow(1, lambda client, round: example_weights(0) * np.float32(1 + 0.001 * client**3))
    for _ in range(2):
        maker.commit(maker.make_block([], [maker.sign_report(client) for client in range(4)]))
    maker.store.prune(1)
    lineage = audit(maker.store).lineage
    assert lineage.made_in == 1
    assert {row.weight for row in lineage.contributions} == {None}
    assert all(row.update for row in lineage.contributions)


def test_privacy_is_recomputed_where_it_can_be_and_else_taken_on_trust(monkeypatch):
    right = audit(grown(2).store)
    assert right.is_right
    assert counts(right)["Epsilons recomputed"] == (4, 4)
    wrong = audit(grown(2, {(1, 2): 0.9}).store)
    assert not wrong.is_right
    assert wrong.failure is None
    assert wrong.members[1].privacy.judgement is Judgement.TOO_LOW
    assert "another epsilon than it spent" in text_of(render_audit(seal_audit(wrong)))

    def refuse(chain, last):
        raise MissingExtra("not there")

    monkeypatch.setattr("bdfl.audit.audit_report.audit_privacy", refuse)
    stated = audit(grown(2).store)
    assert "Epsilons recomputed" not in counts(stated)
    assert [one.part.epsilon for one in stated.members] == [one.part.epsilon for one in right.members]
    assert "not recomputed here" in next(one.why for one in stated.trusted if one.subject == "Privacy")


def founding(genesis, names, num_signed) -> GenesisFile:
    """A genesis file as reading one leaves it, without what an audit does not look at."""

    class Named(GenesisFile, frozen=True):
        @property
        def names(self):
            return names

    signatures = (bytes(64),) * num_signed + (b"",) * (len(names) - num_signed)
    return Named("bdfl genesis 3", genesis, "", b"", (), (), signatures)


def test_a_genesis_file_names_the_members_and_says_who_agreed(store):
    report = audit(store, genesis_file=founding(store.genesis, ("a", "b", "c", "d"), 3))
    assert [one.name for one in report.members] == ["a", "b", "c", "d"]
    assert counts(report)["Genesis signatures"] == (3, 4)
    other = founding(replaced(store.genesis, name="other"), ("a", "b", "c", "d"), 4)
    with pytest.raises(BadGenesisFile, match=r"that of chain .* expected"):
        audit(store, genesis_file=other)


def test_progress_is_told_block_by_block(store):
    heard = []
    audit(store, on_progress=lambda done, total: heard.append((done, total)))
    assert heard == [(1, 3), (2, 3), (3, 3)] * 2


# As a file


def test_a_signed_report_is_read_back_with_its_signer(store):
    file = seal_audit(audit(store), AUDITOR)
    assert decode_audit(file.to_json()) == file
    assert file.signature.public_key == AUDITOR.public_key.hex()
    assert decode_audit(seal_audit(audit(store)).to_json()).signature is None


def test_no_byte_of_a_signed_report_can_be_changed(store):
    data = seal_audit(audit(store), AUDITOR).to_json()
    for place in range(0, len(data), 7):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises(BadAudit):
            decode_audit(bytes(changed))
    with pytest.raises(BadAudit, match="the same bytes expected"):
        decode_audit(data.replace(b'"verified":', b'"verified": '))


def test_nobody_signs_for_another_and_an_audit_is_nothing_else(store):
    file = seal_audit(audit(store), AUDITOR)
    forged = msgspec.structs.replace(
        file, signature=AuditSignature(SIGNERS[0].public_key.hex(), file.signature.signature)
    )
    with pytest.raises(BadAudit, match="another signature found"):
        decode_audit(forged.to_json())
    signature = bytes.fromhex(file.signature.signature)
    block = store.block(3)
    for meaning in set(Meaning) - {Meaning.AUDIT}:
        statement = statement_digest(meaning, block.header.place, encode(block.header))
        assert not is_signed(AUDITOR.public_key, signature, statement)


def test_a_report_of_another_format_and_what_is_none_are_refused(store):
    newer = msgspec.structs.replace(audit(store), format=9)
    with pytest.raises(BadAudit, match=other_format(9, 1).replace("(", "\\(")):
        decode_audit(seal_audit(newer, AUDITOR).to_json())
    for data in (b"", b"{}", b"[" * 10_000, b'{"report": {"format": 1}}', b"\xff", b"null"):
        with pytest.raises(BadAudit, match="the JSON of an audit expected"):
            decode_audit(data)


@pytest.mark.parametrize("field", ["auditor", "audited_at", "chain", "tip"])
def test_what_a_check_prints_cannot_command_a_terminal(store, field):
    file = seal_audit(audit(store), AUDITOR)
    report = msgspec.structs.replace(file.report, **{field: "\x1b[2J"})
    hostile = msgspec.structs.replace(file, report=report)
    with pytest.raises(BadAudit, match=f"report.{field}"):
        decode_audit(hostile.to_json())


def test_the_json_has_these_fields(store):
    document = json.loads(seal_audit(audit(store), AUDITOR).to_json())
    assert list(document) == list(AuditFile.__struct_fields__) == ["report", "digest", "signature"]
    assert list(document["report"]) == [
        "format", "auditor", "audited_at", "name", "chain", "chain_words", "height", "verified", "checkpoint",
        "founded", "first_block", "last_block", "tip", "model", "failure", "rules", "checks", "trusted",
        "members", "certificates_note", "events", "lineage",
    ]  # fmt: skip
    assert list(document["report"]["rules"]) == [
        "scenario", "quorum_rule", "work", "difficulty", "scheduler", "scheduler_version", "aggregation", "min_updates",
        "privacy",
    ]  # fmt: skip
    assert MemberAudit.__struct_fields__ == (
        "name", "fingerprint", "rounds", "participation", "proposed_share", "part", "privacy",
    )  # fmt: skip
    assert list(document["report"]["members"][0]["part"]) == [
        "member", "public_key", "samples", "rate", "since", "until", "scheduled", "trained", "declined", "missing",
        "reports", "proposed", "in_certificates", "epsilon", "queue",
    ]  # fmt: skip
    assert Check.__struct_fields__ == ("subject", "count", "of", "what")
    assert Event.__struct_fields__ == ("block", "member", "kind", "what")
    assert list(document["report"]["lineage"]) == ["block", "made_in", "model", "rule", "contributions"]


# As a page


def test_names_are_text_on_the_page_whatever_they_say():
    maker = ChainMaker(MemoryStore(replaced(example_genesis(INITIAL), name=HOSTILE), INITIAL), SIGNERS)
    maker.grow(1)
    report = audit(maker.store, genesis_file=founding(maker.store.genesis, (HOSTILE,) * 4, 4))
    page = render_audit(seal_audit(report, AUDITOR))
    assert "<script" not in page
    assert "<img" not in page
    assert "\x1b" not in page
    assert page.count("&lt;script&gt;alert(1)") > 4


def test_the_page_needs_nothing_from_outside_and_is_the_same_twice(store):
    file = seal_audit(audit(store), AUDITOR)
    page = render_audit(file)
    assert render_audit(file) == page
    assert "default-src 'none'" in page
    assert "http:" not in page.replace("http-equiv", "")
    assert "https:" not in page
    for text in (file.report.chain_words, file.report.members[0].part.public_key, AUDITOR.public_key.hex()):
        assert text in page


# In the core installation

_CORE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "pyarrow", "opacus", "sklearn", "zenoh", "starlette", "flwr", "psutil"}:
            raise ModuleNotFoundError(f"{name} is not in the core installation")

sys.meta_path.insert(0, Refuse())
from bdfl.cli import main
sys.argv = ["bdfl", "chain", "audit", "chain", "--out", "core.html"]
main()
"""


def test_a_chain_is_audited_with_the_core_installation_alone(tmp_path):
    genesis = example_genesis(INITIAL, privacy=grown(0).state.genesis.privacy)
    with ChainStore.create(tmp_path / "chain", genesis, INITIAL, durable=False) as chain:
        ChainMaker(chain, SIGNERS).grow(2)
    done = subprocess.run([sys.executable, "-c", _CORE], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = decode_audit((tmp_path / "core.json").read_bytes()).report
    assert report.verified == 2
    assert "Epsilons recomputed" not in counts(report)
    assert (tmp_path / "core.html").is_file()
