from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lb.provisioning import Provision, User, read_provision, read_user
from lb.tables import Table


def table(values: dict[str, Any], faults: list[str]) -> Table:
    return Table(values, "", Path("/inv"), faults)


def test_a_user_has_a_role_and_its_password_in_a_file() -> None:
    faults: list[str] = []
    values = {"name": "shop", "role": "publisher", "password_file": "secrets/shop"}
    assert read_user(table(values, faults)) == User(
        name="shop", role="publisher", password_file=Path("/inv/secrets/shop")
    )
    assert faults == []


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"role": "king"}, "role: 'king'; allowed: agent, application,"),
        ({"password": "x"}, "password: unknown key; did you mean 'password_file'?"),
        ({"name": "a b"}, "name: 'a b' is not of the form"),
    ],
)
def test_what_is_wrong_with_a_user_is_told(values: dict[str, Any], told: str) -> None:
    faults: list[str] = []
    fine = {"name": "shop", "role": "publisher", "password_file": "x"}
    read_user(table({**fine, **values}, faults))
    assert any(told in fault for fault in faults), faults


def test_limits_have_defaults_and_tls_wants_certificates() -> None:
    faults: list[str] = []
    assert read_provision(table({"disk_free_mb": 5}, faults), tls=False) == Provision(
        disk_free_mb=5
    )
    assert read_provision(table({"old_publishers": True}, faults), tls=False).old_publishers
    assert faults == []
    assert not read_provision(table({"old_publishers": 1}, faults), tls=False).old_publishers
    assert faults.pop() == "old_publishers: bool wanted, not int"
    read_provision(table({}, faults), tls=True)
    assert faults == ["tls_dir: missing"]
    faults.clear()
    read_provision(table({"disk_free": 5, "tls_dir": "x"}, faults), tls=False)
    assert len(faults) == 2
