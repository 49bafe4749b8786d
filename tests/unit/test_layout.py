"""Packages and their unit tests: every package has tests, and every folder of tests is a package's."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "tests" / "unit"
KITS = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
PACKAGES = sorted(
    {path.parent.relative_to(ROOT) for kit in KITS for path in (ROOT / kit).rglob("*.py")}
)
# Package -> the tests that run it, because it is all sockets, processes or sessions.
TESTED_ELSEWHERE = {"messagebus/_io/admin": "tests/integration/test_parked.py"}
NAMES = r"(?: import (\([^)]*\)|.*))?"
IMPORT = re.compile(rf"^(?:from|import) ((?:{'|'.join(KITS)})\b[\w.]*){NAMES}", re.MULTILINE)
DOCSTRING = re.compile(r'"""(.+?)"""', re.DOTALL)


def folder_of(package: Path) -> Path:
    """Return the folder of a package's unit tests; those of the wheel are at the root of all."""
    kit, *below = package.parts
    return UNIT.joinpath(*([] if kit == "messagebus" else [kit]), *below)


@pytest.mark.parametrize("package", PACKAGES, ids=str)
def test_every_package_has_its_tests_in_one_place(package: Path) -> None:
    folder = folder_of(package)
    file = folder.with_name(f"test_{folder.name}.py")
    places = [
        *([folder] if any(folder.glob("test_*.py")) else []),
        *([file] if file.is_file() else []),
        *[ROOT / test for name, test in TESTED_ELSEWHERE.items() if name == str(package)],
    ]
    assert len(places) == 1, f"tests of {package}: {places or f'none in {folder}'}"
    assert places[0].exists()


def test_every_folder_of_unit_tests_belongs_to_a_package() -> None:
    folders = {path.parent for path in UNIT.rglob("test_*.py")}
    assert sorted(folders - {folder_of(package) for package in PACKAGES}) == []
    assert [name for name in TESTED_ELSEWHERE if Path(name) not in PACKAGES] == []


def test_test_files_of_one_subject_say_what_each_is_about() -> None:
    """Files of one folder that import the same names of a kit have docstrings, all different."""
    alike: dict[tuple[Path, frozenset[tuple[str, str]]], list[Path]] = defaultdict(list)
    for path in UNIT.rglob("test_*.py"):
        if subject := frozenset(IMPORT.findall(path.read_text())):
            alike[path.parent, subject].append(path)
    for paths in alike.values():
        said = {
            match and match[1] for path in paths for match in [DOCSTRING.match(path.read_text())]
        }
        assert len(said) == len(paths), f"one subject, one file: {[*map(str, paths)]}"


def test_no_test_folder_is_a_package() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []
