"""Keys in files: made once, readable by their owner alone, and refused in one helpful line otherwise."""

import os
import stat

import pytest

from bdfl.encoding import Record
from bdfl.federation.keys import BadKeyFile, create_key, in_groups, key_fingerprint, load_key, speakable
from bdfl.identity import Meaning, Place, Signer

needs_rights = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no such rights here")


class Note(Record, frozen=True):
    text: str


def one_line(error):
    text = str(error.value)
    assert "\n" not in text
    return text


def test_a_key_that_was_made_can_be_loaded_and_signs_the_same(tmp_path):
    made = create_key(tmp_path / "a.key")
    loaded = load_key(tmp_path / "a.key")
    place = Place(bytes(32), 0, bytes(32))
    assert loaded.public_key == made.public_key
    assert loaded.sign(Meaning.CARD, place, Note("x")) == made.sign(Meaning.CARD, place, Note("x"))
    assert (tmp_path / "a.key").read_text().startswith("-----BEGIN PRIVATE KEY-----\n")
    assert create_key(tmp_path / "b.key").public_key != made.public_key


@needs_rights
def test_a_key_is_the_owners_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        create_key(tmp_path / "a.key")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.key").stat().st_mode) == 0o600


def test_a_key_is_never_overwritten(tmp_path):
    file = tmp_path / "a.key"
    create_key(file)
    before = file.read_bytes()
    with pytest.raises(BadKeyFile, match="exists already") as error:
        create_key(file)
    one_line(error)
    assert file.read_bytes() == before
    link = tmp_path / "link.key"
    link.symlink_to(tmp_path / "elsewhere.key")
    with pytest.raises(BadKeyFile, match="exists already"):
        create_key(link)
    assert not (tmp_path / "elsewhere.key").exists()


@needs_rights
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o700, 0o601])
def test_a_key_that_others_may_use_is_refused_with_the_remedy(tmp_path, mode):
    file = tmp_path / "a.key"
    create_key(file)
    file.chmod(mode)
    with pytest.raises(BadKeyFile) as error:
        load_key(file)
    assert f"mode {mode:04o}" in one_line(error)
    assert f"chmod 600 {file}" in one_line(error)
    file.chmod(0o400)
    load_key(file)


@needs_rights
def test_a_key_of_somebody_else_is_refused(tmp_path, monkeypatch):
    create_key(tmp_path / "a.key")
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    with pytest.raises(BadKeyFile, match="belongs to user"):
        load_key(tmp_path / "a.key")


def test_what_is_no_key_is_refused_in_one_line(tmp_path):
    file = tmp_path / "a.key"
    with pytest.raises(BadKeyFile, match="bdfl keygen"):
        load_key(file)
    for content in (b"", b"x" * 100, b"x" * 5000, b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"):
        file.write_bytes(content)
        file.chmod(0o600)
        with pytest.raises(BadKeyFile) as error:
            load_key(file)
        one_line(error)
    with pytest.raises(BadKeyFile):
        load_key(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_is_no_key_and_nobody_waits_for_it(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(BadKeyFile, match="no regular file"):
        load_key(tmp_path / "pipe")


def test_other_kinds_of_keys_are_refused(tmp_path):
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    file = tmp_path / "a.key"
    file.write_bytes(generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    file.chmod(0o600)
    with pytest.raises(BadKeyFile, match="another kind"):
        load_key(file)


def test_words_for_reading_out_are_those_of_the_published_scheme():
    assert speakable(bytes([127, 0, 0, 1])) == "lusab-babad"  # proquints as published
    assert speakable(bytes([63, 84, 220, 193])) == "gutih-tugad"
    assert len(key_fingerprint(Signer(bytes(32)).public_key).split("-")) == 4
    assert in_groups(bytes(range(8))) == "00010203 04050607"
