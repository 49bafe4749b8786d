"""The clients of clients/, built: the command of each under the conformance kit."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from bench.figures.clients import TOOLS

__all__ = ["LANGUAGES", "built"]

LANGUAGES = tuple(name for name in TOOLS if name != "python")


def built(language: str, folder: Path) -> list[str]:
    """Build a client; return its command. Without its tool the test is skipped, and fails in CI."""
    tool, build = TOOLS[language]
    if not shutil.which(tool):
        told = f"{tool} is not installed: the client in {language} is not tested"
        assert os.environ.get("CI") != "true", told
        pytest.skip(told)
    return build(folder)
