"""The sample applications: their own tests, their types against the wheel, their compose files."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from ops.dist import build
from ops.provision.compose import IMAGES
from tests.support.documents import EXAMPLES, ROOT, blocks_of
from tests.support.eventually import FACTOR

NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/pyproject.toml"))
COMMAND_WITHIN_S = 300 * FACTOR
# Where its own services are built: the checkout, by one file for all examples.
IMAGE = {"context": "../..", "dockerfile": "examples/Containerfile"}


def run(*argv: str | Path, cwd: Path, **environ: str) -> str:
    """Run a command to its end; its output is shown when it fails."""
    done = subprocess.run(
        [str(each) for each in argv],
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=COMMAND_WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def commands_of(name: str) -> list[str]:
    """Return the commands of its README, one a line, without what a shell adds."""
    blocks = blocks_of(EXAMPLES / name / "README.md")
    lines = "".join(block.text for block in blocks if block.language == "sh").splitlines()
    return [line.removesuffix("&").strip() for line in lines]


def services_of(name: str) -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((EXAMPLES / name / "compose.yaml").read_text())
    return services["services"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", NAMES)
def test_its_own_tests_need_no_server_and_run_as_its_readme_says(name: str) -> None:
    (block,) = (
        block.text
        for block in blocks_of(EXAMPLES / name / "README.md")
        if block.text.startswith(f"cd examples/{name}\n")
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shell = ("bash", "-euo", "pipefail", "-c")
    output = run(*shell, block, cwd=ROOT, PATH=path, PYTHONPATH=str(ROOT))
    assert " passed" in output or "OK" in output.splitlines()  # of pytest, or of Django


@pytest.mark.parametrize("name", NAMES)
def test_its_compose_file_is_one(name: str) -> None:
    schema = ("--builtin-schema", "vendor.compose-spec")
    file = EXAMPLES / name / "compose.yaml"
    run(sys.executable, "-m", "check_jsonschema", *schema, file, cwd=ROOT)


@pytest.mark.parametrize("name", NAMES)
def test_its_containers_run_what_its_readme_runs(name: str) -> None:
    """The READMEs' commands are run by test_docs_cluster.py and test_example_orders.py."""
    ours = [each for each in services_of(name).values() if "build" in each]
    assert ours
    for service in ours:
        assert service["build"].items() >= IMAGE.items()
        assert service["build"]["args"]["EXAMPLE"] == name
        assert shlex.join(service["command"]) in commands_of(name)


@pytest.mark.parametrize("name", NAMES)
def test_its_containers_reach_services_that_exist(name: str, tmp_path: Path) -> None:
    """Those of its own file, and of the bus of `ops compose` where they are on the network of that."""
    file = yaml.safe_load((EXAMPLES / name / "compose.yaml").read_text())
    known = set(file["services"])
    if "broker" in known:
        assert file["services"]["broker"]["image"] == IMAGES["rabbitmq"]
    else:
        run(sys.executable, "-m", "ops", "compose", tmp_path / "bus", cwd=ROOT)
        bus = yaml.safe_load((tmp_path / "bus" / "compose.yaml").read_text())
        assert file["networks"]["bus"] == {"name": f"{bus['name']}_default", "external": True}
        for secret in file["secrets"].values():
            assert (tmp_path / secret["file"].removeprefix("../../")).is_file()
        known |= set(bus["services"])
    environments = [each.get("environment", {}) for each in file["services"].values()]
    values = [value for each in environments for value in each.values()]
    named = {host for value in values if (host := host_of(value)) and host != "0.0.0.0"}
    assert named
    assert named - known == set()


def host_of(value: str) -> str | None:
    """Return the host of an address, `host:port` or a URL; None for a value that is none."""
    return urlsplit(value if "//" in value else f"//{value}").hostname if ":" in value else None


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel, and with all else that is installed here."""
    folder = tmp_path_factory.mktemp("user")
    wheel = build(folder / "dist")[0]
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=ROOT)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index")
    run(*pip, "--target", packages, wheel, cwd=ROOT)
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    made = folder / "bin" / "python"
    where = run(made, "-c", "import messagebus; print(messagebus.__file__)", cwd=folder)
    assert where.startswith(str(folder))
    return made


@pytest.fixture(scope="module")
def mypy(python: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str | Path, ...]:
    cache = tmp_path_factory.mktemp("mypy")
    return (sys.executable, "-m", "mypy", "--python-executable", python, "--cache-dir", cache)


@pytest.mark.parametrize("name", NAMES)
def test_its_types_pass_strict_mypy_against_the_wheel(
    mypy: tuple[str | Path, ...], name: str, tmp_path: Path
) -> None:
    settings = tomllib.loads((EXAMPLES / name / "pyproject.toml").read_text())
    assert settings["tool"]["mypy"]["strict"]
    unwanted = shutil.ignore_patterns("__pycache__")
    project = shutil.copytree(EXAMPLES / name, tmp_path / name, ignore=unwanted)
    assert run(*mypy, ".", cwd=project).startswith("Success")


def test_a_wrong_use_of_the_wheel_is_seen(mypy: tuple[str | Path, ...], tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("from messagebus import App\nApp(5)\n")
    argv = [*map(str, mypy), "wrong.py"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert 'incompatible type "int"; expected "BusConfig | None"' in done.stdout
