"""The distribution: built twice it is the same, and it works where nothing else is installed."""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import httpx
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from readme_renderer import markdown

import messagebus
from bench.processes import free_port
from messagebus.__main__ import LATER
from messagebus.commands.exits import Exit
from ops.dist import bill_of_materials, build
from ops.locked import SERVICES, Lock, requirements_of
from ops.vendor import manifest
from tests.support.documents import blocks_of, files_of
from tests.support.eventually import eventually

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
WITHIN_S = 300
PACKAGES_MAX = 10
BUS = """
[bus]
broker = "127.0.0.1:1"
list_urls = ["http://127.0.0.1:1/list"]
user = "u"
password = "p"
"""
# Files of services whose bus is away.
SETTINGS = {
    "agent.toml": """
broker = "127.0.0.1:1"
user = "u"
password_file = "secret"
http = "{}"
check = "{}"
list_file = "list"
state_dir = "state"
token_file = "secret"
""",
    "gateway.toml": 'listen = "{}"\nadmin = "{}"\nanonymous = "all"' + BUS,
    "monitor.toml": 'listen = "{}"' + BUS,
    "secret": "x",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build(tmp_path_factory.mktemp("dist"))


def test_the_same_commit_gives_the_same_bytes(
    built: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is built from a later copy, in another folder, and by somebody with other settings."""
    for name, value in (("TZ", "Asia/Tokyo"), ("PYTHONHASHSEED", "7"), ("LC_ALL", "C")):
        monkeypatch.setenv(name, value)
    copy = tmp_path / "elsewhere"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "messagebus", copy / "messagebus", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (copy / name).write_bytes((ROOT / name).read_bytes())
    # A worktree has a file that says where its history is.
    copied = shutil.copytree if (ROOT / ".git").is_dir() else shutil.copyfile
    copied(ROOT / ".git", copy / ".git")
    before = os.umask(0o077)
    try:
        again = build(tmp_path / "again", copy)
    finally:
        os.umask(before)
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
    assert len(_needed()) + 1 <= PACKAGES_MAX, _needed()
    python = _installed(built[0], tmp_path / "bare")
    code = "import messagebus, messagebus.testing, messagebus.worker; print(messagebus.__file__)"
    lines = [(["-c", code], str(tmp_path / "bare"))]
    lines += [(["-m", "messagebus", "--version"], messagebus.__version__)]
    lines += [(["-m", "messagebus", name, "--help"], "Usage: ") for name in LATER]
    for argv, shown in lines:
        done = _run(python, argv, tmp_path)
        assert done.returncode == 0, done.stderr
        assert shown in done.stdout


def test_the_readme_works_as_typed_from_an_empty_environment(
    built: list[Path], tmp_path: Path
) -> None:
    """Its commands of installation and its first program, by bash, in a folder that has that program alone.

    `make` gives what `make dist` builds. pip has an index of libraries, which are those that are installed
    here; it has no distribution of ours, so that one that was looked for by its name would not be found.
    """
    here = "tests/integration/test_dist.py"
    blocks = [each for each in blocks_of(README) if each.marks.get("elsewhere") == here]
    assert sum("pip install" in each.text for each in blocks) == 2
    (printed,) = (each for each in blocks_of(README) if each.text.startswith("billed order"))
    index, commands, folder = (tmp_path / name for name in ("index", "bin", "empty"))
    for place in (index, commands, folder):
        place.mkdir()
    for name in _needed("pydantic", "opentelemetry", "gateway", "redis"):
        _pack(name, index)
    _command(commands / "make", f'test "$*" = dist && mkdir dist && cp "{built[0]}" dist')
    _command(commands / "python3", f'exec "{sys.executable}" "$@"')
    (folder / "hello.py").write_text(files_of(README)["hello.py"])
    last = """
pip install 'messagebus-rabbitmq[redis]'  # as errors and guides say it: an extra of what is installed
python -c "import opentelemetry, pydantic, redis, starlette"
messagebus --version
"""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "".join(each.text for each in blocks) + last],
        cwd=folder,
        env={
            "HOME": str(tmp_path),
            "PATH": f"{commands}:{os.defpath}",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_FIND_LINKS": str(index),
            "PIP_NO_INDEX": "1",
        },
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert printed.text in done.stdout
    assert done.stdout.endswith(f"{messagebus.__version__}\n")


def test_the_description_is_a_page_that_an_index_can_show(built: list[Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        (name,) = (each for each in wheel.namelist() if each.endswith(".dist-info/METADATA"))
        described = email.message_from_bytes(wheel.read(name))
    assert described["Description-Content-Type"] == "text/markdown"
    assert described["Author"] == "The messagebus project"
    assert "Development Status :: 3 - Alpha" in described.get_all("Classifier", [])
    assert {each.split(",")[0] for each in described.get_all("Project-URL", [])} >= {"Source"}
    page = markdown.render(str(described.get_payload()))
    assert page is not None
    assert re.match(r"<h1 [^>]*>messagebus<", page)
    assert "<table>" in page
    assert "<img" not in page
    assert "<!--" not in page
    links = re.findall(
        r'href="(?!#user-content-)([^"]*)"', page
    )  # but those of headings to themselves
    assert links
    assert [each for each in links if "://" not in each] == []


def test_an_index_accepts_both(built: list[Path]) -> None:
    checked = _run(
        Path(sys.executable), ["-m", "twine", "check", "--strict", *map(str, built)], ROOT
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.count("PASSED") == len(built)


def test_the_bill_of_materials_is_valid_and_the_same_for_the_same_wheel(
    built: list[Path], tmp_path: Path
) -> None:
    bill = bill_of_materials(built[0], Lock())
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill) is None
    assert bill_of_materials(built[0], Lock()) == bill
    changed = tmp_path / built[0].name
    changed.write_bytes(built[0].read_bytes() + b"\0")
    other = bill_of_materials(changed, Lock())
    assert json.loads(other)["serialNumber"] != json.loads(bill)["serialNumber"]


def test_the_bill_of_materials_has_every_library_and_every_file_of_others(
    built: list[Path],
) -> None:
    lock = Lock()
    bill = json.loads(bill_of_materials(built[0], lock))
    listed = {each["purl"]: each for each in bill["components"]}
    locked = re.findall(r"^([\w.-]+)==(\S+)", lock.lines(lock.of_services()), re.MULTILINE)
    libraries = {f"pkg:pypi/{name}@{version}" for name, version in locked}
    vendored = {
        f"pkg:npm/{each['name'].replace('@', '%40')}@{each['version']}": each for each in manifest()
    }
    assert listed.keys() == libraries | vendored.keys()
    for purl, each in vendored.items():
        assert listed[purl]["licenses"] == [{"license": {"id": each["licence"]}}]
    required = {each["name"] for each in bill["components"] if each.get("scope") == "required"}
    assert required == {each.replace("_", "-") for each in _needed()}
    edges = {each["ref"]: set(each.get("dependsOn", ())) for each in bill["dependencies"]}
    assert {"click", "httpx", "pika", "starlette"} <= edges["messagebus-rabbitmq"]
    assert "httpcore" in edges["httpx"]


def test_the_licences_of_files_of_others_are_in_the_wheel(built: list[Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        names = {Path(each).name for each in wheel.namelist() if "/licenses/" in each}
    vendored = {each["name"].rpartition("/")[2] for each in manifest()}
    assert names == {"LICENSE", *(f"LICENSE.{name}" for name in vendored)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    licences = {"Apache-2.0", *(each["licence"] for each in manifest())}
    assert set(project["license"].split(" AND ")) == licences


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_starts_and_answers_with_its_extra_alone_and_without_it_names_it(
    built: list[Path], tmp_path: Path, service: str
) -> None:
    python, addresses = _installed(built[0], tmp_path / "bare"), [_address(), _address()]
    for name, text in SETTINGS.items():
        (tmp_path / name).write_text(text.format(*addresses))
    argv = ["-m", "messagebus", service, "--config", f"{service}.toml"]
    done = _run(python, argv, tmp_path)
    assert done.returncode == Exit.USAGE
    assert done.stderr.endswith(f"pip install 'messagebus-rabbitmq[{service}]'\n")
    assert len(done.stderr.splitlines()) == 1
    for name in _needed(service):
        _copy(name, python)
    with subprocess.Popen([python, *argv], cwd=tmp_path) as running:
        try:
            eventually(lambda: _answers(running, addresses[0]), within_s=WITHIN_S)
        finally:
            running.terminate()


def test_the_wheel_has_the_types_for_checkers(built: list[Path]) -> None:
    names = zipfile.ZipFile(built[0]).namelist()
    assert {"messagebus/py.typed", "messagebus/__init__.pyi"} <= set(names)


def test_the_wheel_has_the_page_that_explains_its_errors(built: list[Path]) -> None:
    page = (ROOT / "docs" / "reference" / "errors.md").read_text()
    assert zipfile.ZipFile(built[0]).read("messagebus/errors.md").decode() == page


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


def _installed(wheel: Path, bare: Path) -> Path:
    """Install the wheel, and what it needs, into a new environment. Returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    python = bare / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index")
    target = ("--target", _packages(python))
    subprocess.run([*pip, *target, wheel], check=True, timeout=WITHIN_S)
    for name in _needed():
        _copy(name, python)
    return python


def _run(python: Path, argv: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, *argv], cwd=folder, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )


def _command(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def _pack(name: str, folder: Path) -> None:
    """Write the wheel of a distribution that is installed here."""
    found = distribution(name)
    tag = re.findall(r"^Tag: (.+)$", found.read_text("WHEEL") or "", re.MULTILINE)[0]
    stem = f"{name.replace('-', '_')}-{found.version}-{tag}"
    with zipfile.ZipFile(folder / f"{stem}.whl", "w") as wheel:
        for file in found.files or ():
            if not str(file).startswith("..") and file.suffix != ".pyc":
                wheel.write(str(file.locate()), str(file))


def _address() -> str:
    return f"127.0.0.1:{free_port()}"


def _answers(running: subprocess.Popen[bytes], address: str) -> bool:
    assert running.poll() is None
    try:
        return bool(httpx.get(f"http://{address}/", trust_env=False).status_code)
    except httpx.HTTPError:
        return False


def _needed(*extras: str) -> set[str]:
    """Return the names of the distributions that an installation brings, with extras of it."""
    waiting, found = list(map(Requirement, requirements_of(extras))), set[str]()
    while waiting:
        name = waiting.pop().name.lower()
        if name not in found:
            found.add(name)
            required = map(Requirement, distribution(name).requires or ())
            waiting += [r for r in required if not r.marker or r.marker.evaluate({"extra": ""})]
    return found


def _packages(python: Path) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return python.parents[1] / "lib" / version / "site-packages"


def _copy(name: str, python: Path) -> None:
    for file in distribution(name).files or ():
        if not str(file).startswith(".."):
            target = _packages(python) / str(file)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(file.locate()), target)
