"""The clients of clients/, built: the command of each under the conformance kit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "clients"
# The libraries of the one in Rust are compiled, too.
BUILD_WITHIN_S = 900
_LEFT_HERE = shutil.ignore_patterns("node_modules", "target")


def _run(*argv: str, folder: Path) -> None:
    subprocess.run(argv, cwd=folder, check=True, capture_output=True, timeout=BUILD_WITHIN_S)


def _python(_folder: Path) -> list[str]:
    return [sys.executable, "-m", "clients.conform.python_driver"]


def _go(folder: Path) -> list[str]:
    _run("go", "build", "-o", str(folder / "client"), "./conform", folder=FOLDER / "go")
    return [str(folder / "client")]


def _node(folder: Path) -> list[str]:
    copy = Path(shutil.copytree(FOLDER / "node", folder / "node", ignore=_LEFT_HERE))
    _run("npm", "ci", "--no-audit", "--no-fund", "--silent", folder=copy)
    return ["node", str(copy / "conform.js")]


def _java(folder: Path) -> list[str]:
    copy = Path(shutil.copytree(FOLDER / "java", folder / "java", ignore=_LEFT_HERE))
    _run("mvn", "-q", "-B", "package", folder=copy)
    path = f"{copy}/target/classes:{copy}/target/dependency/*"
    return ["java", "-cp", path, "messagebus.Conform"]


def _ruby(_folder: Path) -> list[str]:
    _run("ruby", "-e", "require 'bunny'", folder=FOLDER)
    return ["ruby", str(FOLDER / "ruby" / "conform.rb")]


def _rust(_folder: Path) -> list[str]:
    # What is compiled stays in the checkout's own, ignored, folder.
    _run("cargo", "build", "--quiet", "--locked", folder=FOLDER / "rust")
    return [str(FOLDER / "rust" / "target" / "debug" / "client")]


TOOLS: Mapping[str, tuple[str, Callable[[Path], list[str]]]] = {
    "python": ("python3", _python),
    "go": ("go", _go),
    "node": ("npm", _node),
    "java": ("mvn", _java),
    "ruby": ("ruby", _ruby),
    "rust": ("cargo", _rust),
}
"""Language -> the tool that it needs, and what builds its client in a folder and returns the command."""
LANGUAGES = tuple(name for name in TOOLS if name != "python")


def built(language: str, folder: Path) -> list[str]:
    """Build a client; return its command. Without its tool the test is skipped, and fails in CI."""
    tool, build = TOOLS[language]
    if not shutil.which(tool):
        told = f"{tool} is not installed: the client in {language} is not tested"
        assert os.environ.get("CI") != "true", told
        pytest.skip(told)
    return build(folder)
