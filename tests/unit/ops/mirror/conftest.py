"""An inventory with a mirrored broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.mirrors import mirrored_inventory

HOSTS = {"db1": ("10.0.0.1", "10.9.0.1"), "db2": ("10.0.0.2", "10.9.0.2")}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "inventory.toml"
    path.write_text(
        mirrored_inventory(HOSTS, address="10.0.0.9", service_network="24", power="/usr/bin/pdu")
    )
    return path
