"""Every source file has its tests, and every unit test file its source."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KITS = ("messagebus", "lb", "consumer_lists", "ops", "bench", "spark")
UNIT = ROOT / "tests" / "unit"
# Source -> the tests that run it instead of a unit test of its own, because it is all sockets,
# processes or sessions. Each of these files exists.
TESTED_ELSEWHERE = {
    "messagebus/aio.py": "tests/contract/test_publishing.py",
    "messagebus/consumer.py": "tests/contract/test_consuming.py",
    "messagebus/publisher.py": "tests/contract/test_publishing.py",
    "messagebus/__init__.py": "tests/unit/test_exports.py",
    "messagebus/testing/__init__.py": "tests/unit/test_exports.py",
    "messagebus/testing/brokers.py": "tests/contract/test_consuming.py",
    "messagebus/testing/checks.py": "tests/unit/testing/test_bus.py",
    "messagebus/testing/links.py": "tests/contract/test_faults.py",
    "messagebus/testing/plugin_asyncio.py": "tests/integration/test_testing_plugin.py",
    "messagebus/_io/amqp.py": "tests/contract/test_publishing.py",
    "messagebus/_io/wire.py": "tests/contract/test_publishing.py",
    "messagebus/_io/bridge.py": "tests/contract/test_handling.py",
    "messagebus/_io/coroutines.py": "tests/contract/test_handling.py",
    "messagebus/_io/threads.py": "tests/contract/test_handling.py",
    "messagebus/_io/clock.py": "tests/contract/test_publishing.py",
    "messagebus/_io/consuming.py": "tests/contract/test_consuming.py",
    "messagebus/_io/publishing.py": "tests/contract/test_publishing.py",
    "messagebus/_io/link.py": "tests/integration/test_client_publisher.py",
    "messagebus/_io/parking.py": "tests/integration/test_parked.py",
    "messagebus/_io/copies.py": "tests/contract/test_handling.py",
    "messagebus/_io/dialer.py": "tests/fault/test_distinct_brokers.py",
    "messagebus/_io/control.py": "tests/integration/test_agent.py",
    "messagebus/_io/settle.py": "tests/integration/test_agent.py",
    "messagebus/agent/__init__.py": "tests/integration/test_agent.py",
    "messagebus/agent/answering.py": "tests/unit/agent/test_upkeep.py",
    "messagebus/agent/service.py": "tests/integration/test_agent.py",
    "messagebus/agent/web.py": "tests/integration/test_agent.py",
    "messagebus/__main__.py": "tests/integration/test_command.py",
    "messagebus/commands/worker.py": "tests/integration/test_worker.py",
    "messagebus/directory.py": "tests/integration/test_command.py",
    "ops/carrying.py": "tests/unit/ops/test_cli.py",
    "ops/checkup_cli.py": "tests/integration/test_playbooks.py",
    "ops/local/cli.py": "tests/integration/test_local_cluster.py",
    "ops/local/cluster.py": "tests/integration/test_local_cluster.py",
    "ops/mirror_setup.py": "tests/hosts/test_failover.py",
    "bench/handlers_app.py": "tests/fault/test_handlers.py",
    "bench/handlers_trial.py": "tests/fault/test_handlers.py",
    "bench/figures/rest.py": "tests/integration/test_bench_mesh.py",
    "bench/relay.py": "tests/integration/test_bench_relay.py",
    "bench/figures/client/mesh_brokers.py": "tests/integration/test_bench_mesh.py",
    "bench/figures/client/mesh_consumer.py": "tests/integration/test_bench_mesh.py",
    "bench/figures/client/stream_consumer.py": "tests/integration/test_bench_mesh.py",
    "bench/systems/aio_pika_client.py": "tests/integration/test_bench_systems.py",
    "bench/systems/kombu_client.py": "tests/integration/test_bench_systems.py",
    "bench/systems/pika_blocking.py": "tests/integration/test_bench_systems.py",
    "bench/run/charts.py": "tests/unit/bench/run/test_report.py",
    "bench/run/conduct.py": "tests/integration/test_bench_run.py",
    "bench/run/drivers.py": "tests/integration/test_bench_run.py",
    "bench/run/kombu_driver.py": "tests/integration/test_bench_run.py",
    "bench/run/native.py": "tests/integration/test_bench_run.py",
    "bench/run/pika_blocking_driver.py": "tests/integration/test_bench_run.py",
    "bench/run/standalone.py": "tests/integration/test_bench_run.py",
    "bench/run/aio_pika_driver.py": "tests/integration/test_bench_run.py",
    "bench/run/pika_driver.py": "tests/integration/test_bench_run.py",
    "bench/run/ours.py": "tests/integration/test_bench_run.py",
    "bench/run/worker.py": "tests/integration/test_bench_run.py",
    "bench/demo/cli.py": "tests/integration/test_demo.py",
    "bench/demo/play.py": "tests/integration/test_demo.py",
    "bench/demo/stage.py": "tests/integration/test_demo.py",
}
# Tests of these are still to be written; the list only gets shorter.
PENDING: frozenset[str] = frozenset()
# Unit tests that are about no single source file.
ABOUT_THE_WHOLE = {
    "tests/unit/bench/test_planted.py",
    "tests/unit/test_docs.py",
    "tests/unit/test_docs_blocks.py",
    "tests/unit/test_exports.py",
    "tests/unit/test_help.py",
    "tests/unit/test_layout.py",
    "tests/unit/test_leaks.py",
    "tests/unit/test_mutants.py",
    "tests/unit/test_reference.py",
    "tests/unit/test_versions.py",
}


@functools.cache
def sources() -> list[str]:
    """Files with something in them that can be wrong, from the root of the checkout."""
    found = [path for kit in KITS for path in (ROOT / kit).rglob("*.py")]
    return sorted(str(path.relative_to(ROOT)) for path in found if _says_something(path))


def _says_something(path: Path) -> bool:
    """Not a file without a function: there is nothing to test."""
    if path.name == "__main__.py" and path.parent.name != "messagebus":
        return False  # three lines that call the command, which has its tests
    tree = ast.walk(ast.parse(path.read_text()))
    return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in tree)


def candidates(source: str) -> list[Path]:
    """Where the tests of a source file may be."""
    kit, *folders, name = Path(source).with_suffix("").parts
    below = folders if kit == "messagebus" else [kit, *folders]
    stem = "main" if name == "__main__" else name
    names = [f"test_{stem}.py", f"test_{'_'.join([*below, stem])}.py"]
    if kit == "spark":
        return [
            ROOT / "tests" / "unit" / Path(*below) / names[0],
            ROOT / "tests" / "spark" / names[0],
        ]
    folder = UNIT.joinpath(*below)
    return [folder / names[0], *(ROOT / "tests" / "integration" / each for each in names)]


@pytest.mark.parametrize("source", sources())
def test_every_source_file_has_its_tests(source: str) -> None:
    if source in PENDING:
        return
    if source in TESTED_ELSEWHERE:
        assert (ROOT / TESTED_ELSEWHERE[source]).is_file()
        return
    wanted = candidates(source)
    assert any(path.is_file() for path in wanted), (
        f"no tests of {source}: write {wanted[0].relative_to(ROOT)}, or say in TESTED_ELSEWHERE where"
    )


def unit_tests() -> list[str]:
    found = (str(path.relative_to(ROOT)) for path in UNIT.rglob("test_*.py"))
    return sorted(name for name in found if name not in ABOUT_THE_WHOLE)


@pytest.mark.parametrize("test", unit_tests())
def test_every_unit_test_file_has_its_source(test: str) -> None:
    tested = {path for source in sources() for path in candidates(source)}
    bare = {path for kit in KITS for path in (ROOT / kit).rglob("*.py")}
    also = {path for each in bare for path in candidates(str(each.relative_to(ROOT)))}
    assert ROOT / test in tested | also, f"{test} is the test of no source file"


def test_no_exception_is_about_a_file_that_is_gone() -> None:
    assert [name for name in (*TESTED_ELSEWHERE, *PENDING) if not (ROOT / name).is_file()] == []


def test_no_test_folder_is_a_package() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []
