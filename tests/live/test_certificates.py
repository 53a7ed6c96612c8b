from datetime import UTC, datetime, timedelta

import pytest

from bdfl.identity import Signer
from bdfl.transports.live.certificates import (
    BadCertificate,
    TlsFiles,
    common_name_of,
    is_authority,
    issue_leaf,
    make_ap_certificate,
    make_authority,
    read_leaf,
    read_roots,
    roots_pem,
    validate_access_point,
    validate_authority,
    validate_tls,
    write_tls,
)

SIGNER = Signer(bytes(range(32)))
OTHER = Signer(bytes(32))


@pytest.fixture
def files(tmp_path):
    authority = make_authority(SIGNER, "a member")
    key, leaf = issue_leaf(SIGNER, authority, "member-3", ("127.0.0.1", "node.example"))
    return write_tls(tmp_path / "tls", key, leaf, roots_pem([make_authority(OTHER, "another"), authority]))


def test_an_authority_is_valid_for_its_own_key_only():
    authority = make_authority(SIGNER, "a member")
    assert is_authority(validate_authority(authority, SIGNER.public_key))
    with pytest.raises(BadCertificate, match="certifies another key"):
        validate_authority(authority, OTHER.public_key)


def test_a_leaf_is_certified_by_its_authority_and_named(files):
    leaf = validate_tls(files)
    assert common_name_of(leaf) == "member-3"
    assert common_name_of(read_leaf(files)) == "member-3"
    assert [common_name_of(root) for root in read_roots(files.roots)] == ["another", "a member"]


def test_the_tls_key_is_for_its_owner_alone_and_not_the_signing_key(files):
    assert files.key.stat().st_mode & 0o777 == 0o600
    assert (
        read_leaf(files).public_key() != validate_authority(make_authority(SIGNER, "x"), SIGNER.public_key).public_key()
    )


def test_a_certificate_out_of_its_period_is_refused(files):
    for days in (-3, 400):
        with pytest.raises(BadCertificate, match="member-3: valid from"):
            validate_tls(files, datetime.now(UTC) + timedelta(days=days))
    with pytest.raises(BadCertificate, match="valid from"):
        validate_authority(make_authority(SIGNER, "x"), SIGNER.public_key, datetime.now(UTC) + timedelta(days=4000))


def test_a_leaf_that_no_root_certified_is_refused(files, tmp_path):
    files.roots.write_bytes(roots_pem([make_authority(OTHER, "another")]))
    with pytest.raises(BadCertificate, match="certified by none of the 1 roots"):
        validate_tls(files)


def test_a_key_of_another_certificate_is_refused(files):
    files.key.write_bytes(make_ap_certificate("x")[0])
    with pytest.raises(BadCertificate, match="of another key"):
        validate_tls(files)


@pytest.mark.parametrize("which", ["key", "certificate", "roots"])
@pytest.mark.parametrize(
    "content", [None, b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", bytes(99)]
)
def test_files_that_are_missing_or_damaged_are_named(files, which, content):
    path = getattr(files, which)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(BadCertificate, match=path.name):
        validate_tls(files)


def test_an_access_points_certificate_is_its_own_and_certifies_nobody():
    key, pem, der = make_ap_certificate("roof", ("127.0.0.1",))
    certificate = validate_access_point(der)
    assert common_name_of(certificate) == "roof"
    assert not is_authority(certificate)
    assert roots_pem([der]) == pem
    assert b"PRIVATE KEY" in key
    with pytest.raises(BadCertificate, match="CA certificate given"):
        validate_access_point(make_authority(SIGNER, "a member"))
    with pytest.raises(BadCertificate, match="certifies another key"):
        validate_authority(der, SIGNER.public_key)


def test_an_access_point_can_use_its_own_certificate(tmp_path):
    key, pem, der = make_ap_certificate("roof")
    files = write_tls(tmp_path, key, pem, roots_pem([der]))
    assert isinstance(files, TlsFiles)
    assert common_name_of(validate_tls(files)) == "roof"


@pytest.mark.parametrize("data", [b"", bytes(100), b"\x30" * 9000])
def test_bytes_that_are_no_certificate_are_refused(data):
    with pytest.raises(BadCertificate):
        validate_authority(data, SIGNER.public_key)
    with pytest.raises(BadCertificate):
        validate_access_point(data)


def test_a_certificate_signed_by_another_key_is_refused():
    authority = bytearray(make_authority(SIGNER, "a member"))
    authority[-1] ^= 1
    with pytest.raises(BadCertificate, match="not signed by its own key"):
        validate_authority(bytes(authority), SIGNER.public_key)
