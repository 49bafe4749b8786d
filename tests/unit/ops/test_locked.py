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
