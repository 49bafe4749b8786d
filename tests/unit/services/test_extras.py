"""Commands of services whose libraries are not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from messagebus.commands.exits import Exit

LIBRARIES = {"agent": "starlette", "gateway": "uvloop", "monitor": "jinja2"}
# None in their place: imports of the library and of its modules fail.
WITHOUT = "import sys; sys.modules[{!r}] = None; from messagebus.__main__ import main; main()"


@pytest.mark.parametrize("service", LIBRARIES)
def test_a_service_without_its_libraries_names_what_installs_them(
    service: str, tmp_path: Path
) -> None:
    library = LIBRARIES[service]
    argv = [sys.executable, "-c", WITHOUT.format(library), service, "--config", "absent.toml"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == Exit.USAGE
    assert done.stderr == (
        f"messagebus: {library} is not installed: pip install 'messagebus-rabbitmq[{service}]'\n"
    )
