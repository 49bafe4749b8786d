from __future__ import annotations

from pathlib import Path

import pytest

from ops.run import command


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of this machine's balancers, for each test apart: all have one address, and run side by side."""
    monkeypatch.setattr(command, "LOCKS", tmp_path)
