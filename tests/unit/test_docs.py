"""What the documents say of the tests is true."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_test_that_the_architecture_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "ARCHITECTURE.md").read_text()))
    found = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)\(", file.read_text())
    }
    assert len(named) > 40
    assert named - found == set()


def test_every_environment_variable_of_clients_is_in_the_documents() -> None:
    told = "".join((ROOT / name).read_text() for name in ("README.md", "docs/WIRE.md"))
    for name in ("MESSAGEBUS_BROKER", "MESSAGEBUS_LIST_URL", "MESSAGEBUS_USER"):
        assert name in told
