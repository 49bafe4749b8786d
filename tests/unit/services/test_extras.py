"""Commands of services whose libraries are not installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from messagebus.__main__ import cli
from messagebus.commands.exits import Exit

LIBRARIES = {"agent": "starlette", "gateway": "uvloop", "monitor": "jinja2"}


@pytest.mark.parametrize("service", LIBRARIES)
def test_a_service_without_its_libraries_names_what_installs_them(
    service: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.startswith("messagebus.services")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, LIBRARIES[service], None)
    argv = [service, "--config", str(tmp_path / "absent.toml")]
    assert cli.run(argv, prog_name="messagebus") == Exit.USAGE
    said = capsys.readouterr().err
    assert said == (
        f"messagebus: {LIBRARIES[service]} is not installed: pip install 'messagebus-rabbitmq[{service}]'\n"
    )
