from __future__ import annotations

from pathlib import Path

from messagebus.secret import Secret
from ops.local import secrets


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
