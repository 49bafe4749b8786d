"""messagebus.tls: faults of certificates in one line, before anything is dialled.

And the end of a certificate.
"""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import pytest

from messagebus.errors import ConfigError
from messagebus.tls import TlsFiles, certificate_fault, good_until_s, trusting_nobody
from ops.local.certificates import Authority, issue_missing

DAY_S = 86_400


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    issue_missing(tmp_path, {"client": (), "other": (), "mb1": ("bus.test", "127.0.0.11")})
    return tmp_path


def files(folder: Path, name: str = "client", *, ca: str = "ca.pem", key: str = "") -> TlsFiles:
    return TlsFiles(
        ca_file=str(folder / ca),
        cert_file=str(folder / f"{name}.pem"),
        key_file=str(folder / (key or f"{name}.key")),
    )


def test_a_client_verifies_servers_and_their_names(folder: Path) -> None:
    context = files(folder).client_context()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_a_server_asks_for_certificates(folder: Path) -> None:
    assert files(folder, "mb1").server_context().verify_mode is ssl.CERT_REQUIRED
    with pytest.raises(ConfigError, match="tls_cert_file: must be given"):
        TlsFiles(ca_file=str(folder / "ca.pem")).server_context()


def test_without_files_the_systems_authorities_count() -> None:
    assert TlsFiles().client_context().verify_mode is ssl.CERT_REQUIRED


def test_a_key_may_stand_with_its_certificate(folder: Path) -> None:
    both = folder / "both.pem"
    both.write_text((folder / "client.pem").read_text() + (folder / "client.key").read_text())
    assert TlsFiles(ca_file=str(folder / "ca.pem"), cert_file=str(both)).faults() == []


def test_a_context_is_kept_until_a_file_changes(folder: Path) -> None:
    before = files(folder).client_context()
    assert files(folder).client_context() is before
    certificate, key = Authority.load(folder).issue("client")
    (folder / "client.key").write_text(key)
    (folder / "client.pem").write_text(certificate)
    assert files(folder).client_context() is not before


def test_a_context_in_use_shows_new_certificates(folder: Path) -> None:
    server = files(folder, "mb1")
    used = server.server_context()
    issue = Authority.load(folder).issue
    (folder / "mb1.pem").write_text(issue("mb1", ["new.test"])[0])
    with pytest.raises(ConfigError, match="not the key"):
        server.refresh(used)
    assert shake_hands(files(folder), used, "bus.test")
    for name, text in zip(("mb1.pem", "mb1.key"), issue("mb1", ["new.test"]), strict=True):
        (folder / name).write_text(text)
    server.refresh(used)
    assert shake_hands(files(folder), used, "new.test")


def test_all_missing_files_are_named_at_once(folder: Path) -> None:
    faults = files(folder, "none", ca="none").faults()
    assert len(faults) == 1
    for key in ("tls_ca_file", "tls_cert_file", "tls_key_file"):
        assert f"{key} {folder}/none" in faults[0]
    assert "No such file" in faults[0]


def test_a_folder_is_no_certificate(folder: Path) -> None:
    assert files(folder, ca=".").faults() == [f"tls_ca_file {folder}: Is a directory"]


def test_a_key_of_another_certificate_is_told(folder: Path) -> None:
    (fault,) = files(folder, key="other.key").faults()
    assert fault == f"tls_key_file {folder}/other.key: not the key of {folder}/client.pem"


def test_an_expired_authority_is_told_and_one_beside_a_good_one_is_not(folder: Path) -> None:
    gone = Authority.make("old", days=-2)
    good = (folder / "ca.pem").read_text()
    (folder / "old").mkdir()
    gone.save(folder / "old")
    old = (folder / "old" / "ca.pem").read_text()
    assert "ca.pem: expired on " in files(folder, ca="old/ca.pem").faults()[0]
    (folder / "both.pem").write_text(old + good)
    assert files(folder, ca="both.pem").faults() == []


@pytest.mark.parametrize("text", ["", "nonsense", "-----BEGIN CERTIFICATE-----\n"])
def test_what_is_no_pem_is_told(folder: Path, text: str) -> None:
    for name in ("ca.pem", "client.key"):
        before = (folder / name).read_text()
        (folder / name).write_text(text)
        (fault,) = files(folder).faults()
        assert f"{folder}/{name}" in fault
        (folder / name).write_text(before)


def test_a_key_with_a_password_is_refused_and_nobody_is_asked(folder: Path) -> None:
    from cryptography.hazmat.primitives import serialization as ser

    key = ser.load_pem_private_key((folder / "client.key").read_bytes(), None)
    (folder / "client.key").write_bytes(
        key.private_bytes(
            ser.Encoding.PEM, ser.PrivateFormat.PKCS8, ser.BestAvailableEncryption(b"x")
        )
    )
    (fault,) = files(folder).faults()
    assert "not encrypted, wanted" in fault


def test_a_key_alone_is_told(folder: Path) -> None:
    assert TlsFiles(key_file=str(folder / "client.key")).faults() == [
        "tls_key_file: without a tls_cert_file"
    ]


@pytest.mark.parametrize(
    ("server", "name", "told"),
    [
        ("mb1", "other.test", "its certificate is not good: Hostname mismatch"),
        ("client", "bus.test", "its certificate is not good: unsuitable certificate purpose"),
    ],
)
def test_a_certificate_that_is_not_good_is_told_in_words(
    folder: Path, server: str, name: str, told: str
) -> None:
    with pytest.raises(ssl.SSLError) as raised:
        shake_hands(files(folder), files(folder, server), name)
    assert certificate_fault(raised.value).startswith(told)
    wrapped = RuntimeError("wrapped")
    wrapped.__cause__ = OSError(1, raised.value)
    assert certificate_fault(wrapped).startswith(told)


def test_a_server_that_does_not_take_our_certificate_is_told_in_words(folder: Path) -> None:
    other = folder / "other"
    issue_missing(other, {"client": ()})
    ours = TlsFiles(
        ca_file=str(folder / "ca.pem"),
        cert_file=str(other / "client.pem"),
        key_file=str(other / "client.key"),
    )
    with pytest.raises(ssl.SSLError) as raised:
        shake_hands(ours, files(folder, "mb1"), "bus.test")
    assert certificate_fault(raised.value) == "it does not take our certificate: unknown ca"
    # pika leaves nothing but the text of it.
    assert certificate_fault(RuntimeError(repr(raised.value)))


def test_the_names_and_addresses_of_a_certificate_are_good(folder: Path) -> None:
    for name in ("bus.test", "127.0.0.11"):
        assert shake_hands(files(folder), files(folder, "mb1"), name)


@pytest.mark.parametrize("fault", [OSError("gone"), ssl.SSLEOFError(8, "EOF"), ValueError()])
def test_other_faults_are_not_about_certificates(fault: Exception) -> None:
    assert certificate_fault(fault) == ""


def test_an_error_that_is_its_own_cause_ends() -> None:
    first, second = OSError(), OSError()
    first.__cause__, second.__cause__ = second, first
    assert certificate_fault(first) == ""


def shake_hands(client: TlsFiles, server: TlsFiles | ssl.SSLContext, name: str) -> bool:
    """Shake hands of both ends in memory, until one of them raises or both are content."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.client_context().wrap_bio(to_client, to_server, server_hostname=name)
    if isinstance(server, TlsFiles):
        server = server.server_context()
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    raised: list[ssl.SSLError] = []
    for _turn in range(5):
        for end in (ours, theirs):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as fault:
                raised.append(fault)
                if end is ours:
                    raise
    try:
        ours.read(1)  # in TLS 1.3 the server judges us after our handshake is done
    except ssl.SSLWantReadError:
        assert not raised
    return True


def test_certificates_are_good_until_the_first_of_them_ends(folder: Path) -> None:
    def days_left(tls: TlsFiles) -> float:
        end_s = tls.good_until_s()
        assert end_s is not None
        return (end_s - time.time()) / 86_400

    certificate, key = Authority.load(folder).issue("client", days=5)
    (folder / "client.pem").write_text(certificate)
    (folder / "client.key").write_text(key)
    assert days_left(files(folder)) == pytest.approx(5, abs=0.1)
    (folder / "short").mkdir()
    Authority.make("short", days=2).save(folder / "short")
    assert days_left(files(folder, ca="short/ca.pem")) == pytest.approx(2, abs=0.1)
    both = (folder / "ca.pem").read_text() + (folder / "short" / "ca.pem").read_text()
    (folder / "both.pem").write_text(both)
    assert days_left(files(folder, ca="both.pem")) == pytest.approx(5, abs=0.1)


def test_files_that_are_not_there_or_not_given_have_no_end(folder: Path) -> None:
    assert TlsFiles().good_until_s() is None
    assert files(folder, ca="missing.pem").good_until_s() is None
    (folder / "client.pem").write_text("no certificate")
    assert files(folder).good_until_s() is None


def test_a_client_of_http_alone_trusts_nobody() -> None:
    assert not trusting_nobody().get_ca_certs()
    assert trusting_nobody().verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize("days", [-3, 5, 397, 40 * 365])
def test_the_end_of_a_certificate_is_read_also_in_another_half_of_the_century(days: int) -> None:
    pem, _key = Authority.make("test").issue("client", days=days)
    assert good_until_s(pem) == pytest.approx(time.time() + days * DAY_S, abs=60)


def test_of_several_the_first_counts() -> None:
    authority = Authority.make("test")
    first, second = authority.issue("client", days=5)[0], authority.issue("client", days=50)[0]
    text = f"our own:\n{first}\n{second}"
    assert good_until_s(text) == pytest.approx(time.time() + 5 * DAY_S, abs=60)


def test_what_is_no_certificate_is_told() -> None:
    pem, key = Authority.make("test").issue("client")
    head, *lines, foot = pem.strip().splitlines()
    short = "\n".join((head, *lines[:1], foot))
    for text in ("", key, f"{head}\n{foot}", f"{head}\nMAA=\n{foot}", short):
        with pytest.raises(ValueError, match=r"no PEM certificate|cannot be read"):
            good_until_s(text)
