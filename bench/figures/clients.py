"""The clients of clients/ under the conformance kit: cases passed, and the time to consume from a new broker.

The kit starts brokers of its own, each time anew. A language whose tool is not installed is left out.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.errors import BenchError
from bench.figures.form import Figure, Maker, at_least, at_most
from bench.figures.scene import Group, Scene, repeat_command

NAME = "clients"
FOLDER = Path(__file__).resolve().parents[2] / NAME
CASES, ATTACH_S, ADDED_CASE = 20, 5, 5
# Times of the kit are those of an idle machine.
PATIENCE = 4
# The libraries of the one in Rust are compiled, too.
BUILD_WITHIN_S, JUDGED_WITHIN_S = 900, 1_800
_LEFT_HERE = shutil.ignore_patterns("node_modules", "target")


def _run(*argv: str, folder: Path) -> None:
    subprocess.run(argv, cwd=folder, check=True, capture_output=True, timeout=BUILD_WITHIN_S)


def _python(_folder: Path) -> list[str]:
    return [sys.executable, "-m", "messagebus_conform.python_driver"]


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


def _figures(scene: Scene) -> Iterator[Figure]:
    make = Maker(NAME, repeat_command(NAME))
    for language, (tool, build) in TOOLS.items():
        if not shutil.which(tool):
            scene.say(f"{tool} is not installed: the client in {language} is left out")
            continue
        folder = scene.folder / language
        folder.mkdir()
        found = judged(build(folder))
        for each in found:
            if each["result"] != "passed":
                scene.say(f"{language}: case {each['number']}: {each['told']}")
        passed = sum(each["result"] == "passed" for each in found)
        what = f"Client in {language}: cases of the conformance kit that it passes, of {CASES}"
        yield make(f"{language}.conform", what, [passed], "cases", (at_least, CASES))
        attached = re.fullmatch(r"attached in (\S+) s", found[ADDED_CASE - 1]["told"])
        if attached:
            what = f"Client in {language}: from a list to a delivery of a new broker"
            soon = [float(attached[1])]
            yield make(f"{language}.attach_s", what, soon, "s", (at_most, ATTACH_S))


def judged(command: list[str]) -> list[dict[str, Any]]:
    """Run the whole kit on a client; return the rows of its cases, by number. Raises BenchError."""
    argv = [sys.executable, "-m", "messagebus_conform", "--json", "--patience", str(PATIENCE)]
    run = subprocess.run(
        [*argv, "--", *command], capture_output=True, text=True, timeout=JUDGED_WITHIN_S
    )
    rows = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    if len(rows) != CASES:
        raise BenchError(f"the kit judged {len(rows)} cases: {run.stderr[-300:]}")
    return sorted(rows, key=lambda row: int(row["number"]))


GROUP = Group(NAME, 0, "brokers of the conformance kit", _figures)
