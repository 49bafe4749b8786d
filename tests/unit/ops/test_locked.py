"""Parts of requirements.lock: each holds whatever its libraries require, and no more."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ops.commands.kits import CHECKOUT
from ops.locked import SERVICES, Lock, NotLocked, requirements_of
from ops.provision.program import needed


def test_wheels_are_built_without_the_libraries_of_anything_else() -> None:
    builders = {"build", "packaging", "pbr", "pyproject-hooks", "setuptools", "wheel"}
    # The bill of materials, and what CycloneDX's library needs.
    bill = {"boolean-py", "cyclonedx-python-lib", "defusedxml", "license-expression"}
    bill |= {"packageurl-python", "py-serializable", "sortedcontainers", "typing-extensions"}
    assert Lock().part("build") == builders | bill


def test_a_local_cluster_needs_neither_tests_nor_figures_nor_spark() -> None:
    part = Lock().part("ops")
    assert {"pika", "click", "rich", "haproxyadmin", "fabric", "paramiko", "starlette"} <= part
    assert not {"pytest", "mypy", "pyarrow", "matplotlib", "duckdb", "pyspark"} & part


def test_only_the_part_spark_has_spark() -> None:
    lock = Lock()
    assert lock.part("spark") == {"pyspark", "py4j"}
    assert not lock.part("python") & lock.part("spark")
    assert lock.part("build") < lock.part("ops") < lock.part("python")


def test_what_services_need_by_the_lock_is_what_they_need_by_their_metadata() -> None:
    assert Lock().of_services() == needed(requirements_of(SERVICES))


def test_an_unknown_part_is_named() -> None:
    with pytest.raises(NotLocked, match="'nothing'"):
        Lock().part("nothing")
    with pytest.raises(NotLocked, match="absent"):
        Lock().required(["absent"])


def test_parts_are_read_by_a_python_without_any_library() -> None:
    argv = [sys.executable, "-S", "-I", "-c", "import sys; sys.path[:0] = ['.']; import ops.dist"]
    subprocess.run(argv, cwd=CHECKOUT, check=True)


# An import of a library that the parts do not have fails as it does where they alone are installed.
WITHOUT_THE_REST = """
import sys
import importlib.metadata as metadata
from ops.locked import Lock

class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name in refused:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

has = Lock().part(sys.argv[1])
refused = {
    top
    for top, owners in metadata.packages_distributions().items()
    if not top.startswith("messagebus") and not {each.lower().replace("_", "-") for each in owners} & has
} - {"bench", "inventory", "lb", "ops", "pip", "reports", "spark", "tests"}
sys.meta_path.insert(0, Refuses())
"""


@pytest.mark.parametrize(
    ("part", "work"),
    [
        (
            "build",
            "from pathlib import Path; import ops.dist;"
            " ops.dist.bill_of_materials(Path('pyproject.toml'), Lock())",
        ),
        ("ops", "import ops.__main__, ops.local.cli, lb.__main__, consumer_lists.__main__"),
    ],
)
def test_make_targets_run_with_the_part_that_they_install_alone(part: str, work: str) -> None:
    argv = [sys.executable, "-c", WITHOUT_THE_REST + work, part]
    done = subprocess.run(argv, cwd=CHECKOUT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
