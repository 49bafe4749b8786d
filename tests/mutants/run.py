"""Plant one fault at a time and see whether the unit tests notice.

``python tests/mutants/run.py [MODULE ...]`` reads ``tests/mutants/MODULE.toml`` (all without a name):

    [[mutant]]
    file = "messagebus/core/confirms.py"
    find = "text that occurs once in the file"
    replace = "what stands there instead"
    why = "what breaks then"

Each is applied to a copy of the tree in a temporary folder, and the tests of its file are run there
(``tests = [...]`` at the top of the TOML names others). A mutant is killed when a test fails. Exit 1
when one survives, 2 when one cannot be applied.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
PARTS = ("messagebus", "tests/unit", "tests/support", "pyproject.toml")
# A mutant that makes a test hang is killed by that: a healthy module's tests take a few seconds.
TIMEOUT_S = 120
WORKERS = os.cpu_count() or 1
# pytest's exit codes: 1 tests failed, 2 interrupted, 4 wrong use; with 1 the mutant is noticed, and
# with 2 the module does not even load.
NOTICED = (1, 2)
# As in tests/support/examples.py.
THOROUGH = "TESTS_THOROUGH"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """Planted fault. tests: paths of the tests that must notice it."""

    module: str
    number: int
    file: str
    find: str
    replace: str
    why: str
    tests: tuple[str, ...]


class NotApplicable(Exception):
    """Raised when the text to replace is not there exactly once: the source has moved on."""


def load(path: Path) -> list[Mutant]:
    """Read one file of mutants. Raises KeyError for a missing field."""
    data = tomllib.loads(path.read_text())
    return [
        Mutant(
            module=path.stem,
            number=number,
            file=each["file"],
            find=each["find"],
            replace=each["replace"],
            why=each["why"],
            tests=tuple(data.get("tests") or [tests_of(each["file"])]),
        )
        for number, each in enumerate(data["mutant"], start=1)
    ]


def tests_of(file: str) -> str:
    """Return the test's path: ``messagebus/core/confirms.py`` -> ``tests/unit/core/test_confirms.py``."""
    path = Path(file)
    return str(Path("tests/unit", *path.parent.parts[1:], f"test_{path.stem}.py"))


def apply(mutant: Mutant, tree: Path) -> None:
    path = tree / mutant.file
    text = path.read_text()
    if (count := text.count(mutant.find)) != 1:
        raise NotApplicable(f"{mutant.file}: {count} times instead of once: {mutant.find!r}")
    path.write_text(text.replace(mutant.find, mutant.replace))


def copy_tree(target: Path) -> None:
    for part in PARTS:
        source, copy = ROOT / part, target / part
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy)


def run_tests(tree: Path, tests: tuple[str, ...]) -> bool:
    """Run the tests; return whether all pass."""
    argv = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header"]
    try:
        done = subprocess.run(
            [*argv, *tests],
            cwd=tree,
            env=os.environ | {THOROUGH: "1"},
            capture_output=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return False
    if done.returncode not in (0, *NOTICED):
        raise NotApplicable(f"pytest exit {done.returncode}: {done.stdout.decode()[-500:]}")
    return done.returncode == 0


def survives(mutant: Mutant) -> bool:
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        apply(mutant, tree)
        return run_tests(tree, mutant.tests)


def judge(mutant: Mutant) -> str:
    try:
        return "SURVIVED" if survives(mutant) else "killed"
    except NotApplicable as fault:
        return f"NOT APPLICABLE: {fault}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("module", nargs="*", help="names of files without .toml, such as confirms")
    names = parser.parse_args().module or sorted(path.stem for path in HERE.glob("*.toml"))
    mutants = [mutant for name in names for mutant in load(HERE / f"{name}.toml")]
    with ThreadPoolExecutor(WORKERS) as pool:
        verdicts = []
        for mutant, verdict in zip(mutants, pool.map(judge, mutants), strict=True):
            verdicts.append(verdict)
            print(f"{verdict:<9} {mutant.module} {mutant.number}: {mutant.why}", flush=True)
    killed = verdicts.count("killed")
    print(f"{killed} of {len(mutants)} killed")
    if any(verdict.startswith("NOT") for verdict in verdicts):
        return 2
    return 0 if killed == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
