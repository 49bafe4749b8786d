"""systemd's own opinion of units: `systemd-analyze` needs no running systemd."""

from __future__ import annotations

import subprocess
from pathlib import Path

WITHIN_S = 60


def verify(*units: Path) -> str:
    """Return systemd's complaints about them; "" when it would run them as they are."""
    code, said = _analyze("verify", "--man=no", *map(str, units))
    return said or (f"exit code {code}" if code else "")


def exposure_fault(unit: Path, limit: int) -> str:
    """Return the whole report of a unit that may do more than the limit, 0 to 100; else ""."""
    words = ("security", "--offline=true", "--no-pager", f"--threshold={limit}", str(unit))
    code, said = _analyze(*words)
    return said if code else ""


def _analyze(*words: str) -> tuple[int, str]:
    done = subprocess.run(
        ["systemd-analyze", *words], capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    return done.returncode, done.stdout + done.stderr
