"""The clients of clients/, built: the command of each under the conformance kit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

__all__ = ["LANGUAGES", "built"]

CLIENTS = Path(__file__).resolve().parents[2] / "clients"
# The libraries of the one in Rust are compiled, too.
BUILD_WITHIN_S = 900


def run_tool(*argv: str, folder: Path) -> None:
    subprocess.run(argv, cwd=folder, check=True, capture_output=True, timeout=BUILD_WITHIN_S)


def go(folder: Path) -> list[str]:
    run_tool("go", "build", "-o", str(folder / "client"), "./conform", folder=CLIENTS / "go")
    return [str(folder / "client")]


def node(folder: Path) -> list[str]:
    copy = shutil.copytree(CLIENTS / "node", folder / "node", ignore=ignored)
    run_tool("npm", "ci", "--no-audit", "--no-fund", "--silent", folder=copy)
    return ["node", str(copy / "conform.js")]


def java(folder: Path) -> list[str]:
    copy = shutil.copytree(CLIENTS / "java", folder / "java", ignore=ignored)
    run_tool("mvn", "-q", "-B", "package", folder=copy)
    return [
        "java",
        "-cp",
        f"{copy}/target/classes:{copy}/target/dependency/*",
        "messagebus.Conform",
    ]


def ignored(folder: str, names: list[str]) -> set[str]:
    return {"node_modules", "target"} & set(names)


def python(_folder: Path) -> list[str]:
    return [sys.executable, "-m", "messagebus_conform.python_driver"]


def ruby(_folder: Path) -> list[str]:
    run_tool("ruby", "-e", "require 'bunny'", folder=CLIENTS)
    return ["ruby", str(CLIENTS / "ruby" / "conform.rb")]


def rust(_folder: Path) -> list[str]:
    # What is compiled stays in the checkout's own, ignored, folder.
    run_tool("cargo", "build", "--quiet", "--locked", folder=CLIENTS / "rust")
    return [str(CLIENTS / "rust" / "target" / "debug" / "client")]


# Language -> the tool without which it is not tested, and what builds it in a folder.
TOOLS: dict[str, tuple[str, Callable[[Path], list[str]]]] = {
    "python": ("python3", python),
    "go": ("go", go),
    "node": ("npm", node),
    "java": ("mvn", java),
    "ruby": ("ruby", ruby),
    "rust": ("cargo", rust),
}
LANGUAGES = tuple(name for name in TOOLS if name != "python")


def built(language: str, folder: Path) -> list[str]:
    """Build a client; return its command. Without its tool the test is skipped, and fails in CI."""
    tool, build = TOOLS[language]
    if not shutil.which(tool):
        told = f"{tool} is not installed: the client in {language} is not tested"
        assert os.environ.get("CI") != "true", told
        pytest.skip(told)
    return build(folder)
