"""The distribution: built twice it is the same, and it works where nothing else is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

import messagebus
from ops.dist import build

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 300
PACKAGES_MAX = 10


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build(tmp_path_factory.mktemp("dist"))


def test_the_same_commit_gives_the_same_bytes(built: list[Path], tmp_path: Path) -> None:
    """The second is built from a later copy, in another folder."""
    copy = tmp_path / "elsewhere"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "messagebus", copy / "messagebus", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (copy / name).write_bytes((ROOT / name).read_bytes())
    # A worktree has a file that says where its history is.
    copied = shutil.copytree if (ROOT / ".git").is_dir() else shutil.copyfile
    copied(ROOT / ".git", copy / ".git")
    again = build(tmp_path / "again", copy)
    assert [path.name for path in again] == [path.name for path in built]
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in built]


def test_a_wheel_is_built_where_there_is_no_git(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build(tmp_path / "dist")[0].suffix == ".whl"


def test_the_wheel_works_in_a_bare_environment_of_few_packages(
    built: list[Path], tmp_path: Path
) -> None:
    needed = sorted(_needed())
    assert len(needed) + 1 <= PACKAGES_MAX, needed
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = bare / "lib" / version / "site-packages"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index")
    subprocess.run([*pip, "--target", packages, built[0]], check=True, timeout=WITHIN_S)
    for name in needed:
        _copy(name, packages)
    python = bare / "bin" / "python"
    code = "import messagebus, messagebus.testing, messagebus.worker; print(messagebus.__file__)"
    for argv, told in (
        (["-c", code], str(packages)),
        (["-m", "messagebus", "--version"], messagebus.__version__),
        (["-m", "messagebus", "publish", "--help"], "Usage: "),
    ):
        done = subprocess.run(
            [python, *argv], cwd=tmp_path, capture_output=True, text=True, timeout=WITHIN_S
        )
        assert done.returncode == 0, done.stderr
        assert told in done.stdout


def test_the_wheel_has_the_types_for_checkers(built: list[Path]) -> None:
    names = zipfile.ZipFile(built[0]).namelist()
    assert {"messagebus/py.typed", "messagebus/__init__.pyi"} <= set(names)


def test_the_wheel_has_the_package_alone_and_the_files_of_the_monitor(built: list[Path]) -> None:
    names = set(zipfile.ZipFile(built[0]).namelist())
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"messagebus"}
    monitor = "messagebus/services/monitor"
    assert {
        f"{monitor}/templates/base.html",
        f"{monitor}/static/vendor/inter.woff2",
        f"{monitor}/static/vendor/LICENSE.inter",
    } <= names


def test_the_distribution_has_a_name_of_its_own() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == "messagebus-rabbitmq"
    assert project["version"] == messagebus.__version__


def _needed() -> set[str]:
    """Return the names of the distributions that a plain installation brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    waiting, found = list(project["dependencies"]), set[str]()
    while waiting:
        name = re.match(r"[A-Za-z0-9._-]+", waiting.pop())
        assert name is not None
        if name[0].lower() not in found:
            found.add(name[0].lower())
            required = distribution(name[0]).requires or ()
            waiting += [each for each in required if "extra ==" not in each and _applies(each)]
    return found


def _applies(requirement: str) -> bool:
    _, _, marker = requirement.partition(";")
    return "python_version <" not in marker and "win32" not in marker and "Windows" not in marker


def _copy(name: str, packages: Path) -> None:
    for file in distribution(name).files or ():
        if not str(file).startswith(".."):
            target = packages / str(file)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(file.locate()), target)
