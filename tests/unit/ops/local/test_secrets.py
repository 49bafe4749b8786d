from __future__ import annotations

from pathlib import Path

from cryptography import x509

from messagebus.secret import Secret
from messagebus.tls import TlsFiles
from ops.local import secrets
from ops.local.certificates import Authority, issue_missing


def test_secrets_are_made_once_and_readable_by_their_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    secrets.ensure(folder)
    first = {file.name: file.read_text() for file in folder.iterdir()}
    secrets.ensure(folder)
    assert {file.name: file.read_text() for file in folder.iterdir()} == first
    assert len(set(first.values())) == len(first) == 5
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_password_is_hashed_as_rabbitmq_does_it() -> None:
    # The example of https://www.rabbitmq.com/docs/passwords.
    hashed = secrets.password_hash(Secret("test12"), bytes.fromhex("908DC60A"))
    assert hashed == "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"


def test_a_hash_is_known_by_its_password_and_not_by_its_salt() -> None:
    first, second = (secrets.password_hash(Secret("test12")) for _ in range(2))
    assert first != second
    assert secrets.is_hash_of(first, Secret("test12"))
    assert secrets.is_hash_of(second, Secret("test12"))
    for stored, password in ((first, "test13"), ("no base64", "test12"), ("", "test12")):
        assert not secrets.is_hash_of(stored, Secret(password))


WANTED: dict[str, tuple[str, ...]] = {"mb1": ("127.0.0.11", "bus.test"), "client": ()}


def test_what_is_missing_is_made_and_the_rest_kept(tmp_path: Path) -> None:
    issue_missing(tmp_path, WANTED)
    first = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert set(first) == {"ca.pem", "ca.key", "mb1.pem", "mb1.key", "client.pem", "client.key"}
    issue_missing(tmp_path, {**WANTED, "mb2": ("127.0.0.12",)})
    second = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert second == first | {name: second[name] for name in ("mb2.pem", "mb2.key")}


def test_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    issue_missing(tmp_path, WANTED)
    assert {file.stat().st_mode & 0o777 for file in tmp_path.glob("*.key")} == {0o600}


def test_a_certificate_that_ends_soon_is_made_anew(tmp_path: Path) -> None:
    issue_missing(tmp_path, {"client": ()})
    before = (tmp_path / "ca.pem").read_bytes()
    certificate, key = Authority.load(tmp_path).issue("client", days=5)
    (tmp_path / "client.pem").write_text(certificate)
    (tmp_path / "client.key").write_text(key)
    issue_missing(tmp_path, {"client": ()})
    assert (tmp_path / "client.pem").read_text() != certificate
    assert (tmp_path / "ca.pem").read_bytes() == before
    files = [str(tmp_path / name) for name in ("ca.pem", "client.pem", "client.key")]
    assert TlsFiles(ca_file=files[0], cert_file=files[1], key_file=files[2]).faults() == []


def test_a_certificate_is_for_its_names_and_addresses() -> None:
    pem, _key = Authority.make("a").issue("mb1", WANTED["mb1"])
    names = x509.load_pem_x509_certificate(pem.encode()).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert names.value.get_values_for_type(x509.DNSName) == ["bus.test"]
    assert [str(ip) for ip in names.value.get_values_for_type(x509.IPAddress)] == ["127.0.0.11"]
