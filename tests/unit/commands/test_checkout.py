"""Programs of the checkout in a Python without their libraries: one line, and not a traceback."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from messagebus.commands.checkout import check_library
from tests.support.documents import ROOT

KITS = ("bench", "consumer_lists", "lb", "ops", "spark")


def run_bare(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m` without site-packages, as a Python outside of .venv."""
    return subprocess.run(
        [sys.executable, "-S", "-m", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("kit", KITS)
def test_a_kit_in_another_python_names_the_environment_that_it_needs(kit: str) -> None:
    done = run_bare(kit, "--help")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"python -m {kit}: {sys.executable} has no ")
    assert "run `. .venv/bin/activate` in the checkout" in line


def test_what_makes_the_environment_needs_no_library() -> None:
    script = (ROOT / "ops/local/install.sh").read_text()
    modules = re.findall(r'"\$python" -m (ops\.[a-z_.]+)', script)
    assert modules == ["ops.locked"]
    for module in modules:
        done = run_bare(module, "build")
        assert (done.returncode, done.stderr) == (0, "")
        assert "==" in done.stdout


def test_a_kit_that_another_program_imports_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "pytest"])
    check_library("ops", "no_such_library")
