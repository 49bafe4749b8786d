"""Passwords and tokens of a local cluster: made once at random, kept in files of mode 0600."""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
from pathlib import Path

from messagebus.errors import ConfigError
from messagebus.files import write_whole
from messagebus.secret import Secret

ADMIN, BUS, PROBE = "admin.password", "bus.password", "probe.password"
TOKEN, COOKIE = "token", "cookie"
SECRET_BYTES = 24
SALT_BYTES = 4


def ensure(folder: Path) -> None:
    """Make the missing secrets."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in (ADMIN, BUS, PROBE, TOKEN, COOKIE):
        if not (folder / name).exists():
            # Erlang takes letters and digits for a cookie; hex is good for all of them.
            write_whole(folder / name, secrets.token_hex(SECRET_BYTES))


def read(path: Path) -> Secret:
    """Read a file's secret. Raises OSError; ConfigError for what is no text, which shows no byte of it."""
    try:
        return Secret(path.read_text().strip())
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8") from None


def password_hash(password: Secret, salt: bytes = b"") -> str:
    """Hash a password as RabbitMQ stores it: base64 of a salt of 4 bytes and sha256(salt + password).

    Source: https://www.rabbitmq.com/docs/passwords.
    """
    salt = salt or os.urandom(SALT_BYTES)
    digest = hashlib.sha256(salt + password.reveal().encode()).digest()
    return base64.b64encode(salt + digest).decode()


def is_hash_of(stored: str, password: Secret) -> bool:
    """Return whether a broker's stored hash is of this password, whatever its salt."""
    try:
        salt = base64.b64decode(stored, validate=True)[:SALT_BYTES]
    except ValueError:
        return False
    return bool(salt) and password_hash(password, salt) == stored
