"""Tiers of the suite, and the parts of it that run beside each other.

The tier `test` is what `make test` runs: all unit tests and models, the contract in memory and, through the
asyncio clients, on RabbitMQ, the tests of EXTRAS, and one test of every promise of docs/guarantees.toml that
has none among these: the quickest by tests/durations.json. A promise that is shown on virtual hosts alone
(tests/hosts) has its tests in the tier `rest`. So have the tests of tests/unit/spark that need a JVM, but
for those of EXTRAS.

The tier `rest` is everything else. `make test-all` runs both, and tries properties with all their examples.

Some tests of the tier `rest` run by turns, each on one day in TURN_DAYS:

- Controls. A control leaves out the part that keeps a promise, and must see the fault; its name begins with
  `test_control_`, or its parameter is `control`.
- The contract of the blocking clients on RabbitMQ. It shows that two things fit which are tested every day:
  the blocking clients in memory, and their driver, by the asyncio clients, on RabbitMQ.
- What takes TURNS_S or more by tests/durations.json, but on virtual hosts. The promises that such tests show
  have one test each, the quickest, in the tier `test`.

`python -m tests.run --all --every` leaves no turn out, before a release.

tests/conftest.py gives pytest the options:

    pytest --tier=test --part=real tests/contract tests/fault tests/integration

`make check` runs what this prints, the unit tests of the heart and of what differs from the last commit:

    python -m tests.tiers
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from docs import guarantees

TESTS = Path(__file__).resolve().parent
CHECKOUT = TESTS.parent
# Unit tests that `make check` always runs: what every message passes through.
HEART = ("_io", "core", "outbox", "stores", "testing")
DURATIONS = TESTS / "durations.json"
TIERS = ("test", "rest", "both")
# Folders and files that a part collects.
PARTS = {
    "unit": ("contract", "model", "unit"),
    "spark": (
        *(f"integration/test_spark_{name}.py" for name in ("jobs", "versions")),
        "unit/spark",
    ),
    "hosts": ("hosts",),
    "real": ("contract", "fault", "integration"),
}
# Files and tests that the tier `test` has beside promises, each on the real thing.
EXTRAS = {
    "tests/unit/spark/jobs/test_answers.py",
    "tests/integration/test_playbooks_under_load.py::"
    "test_adding_and_removing_under_load_loses_and_doubles_nothing_and_keeps_the_order_of_keys",
    "tests/integration/test_monitor_browser.py::"
    "test_no_page_has_a_fault_of_script_policy_access_or_width",
    "tests/integration/test_gateway_docs.py::test_curl_alone_declares_publishes_pulls_and_acks",
    "tests/integration/test_docs_cluster.py::test_the_readme_s_clients_work_on_a_cluster",
    "tests/integration/test_dist.py::test_the_readme_works_as_typed_from_an_empty_environment",
}
SERVERS = {"rabbitmq", "redis", "postgresql", "mariadb"}
# A test that tests/durations.json does not name: most take less than is kept there.
UNKNOWN_S = 0.2
BY_TURNS = re.compile(r"::test_control_|\[control\]$|^tests/contract/.*\[blocking-rabbitmq\b")
TURNS_S = 20.0
TURN_DAYS = 3
# Set: every test has its turn today.
EVERY = "TESTS_EVERY"
S_PER_DAY = 86_400


def part_of(item: pytest.Item) -> str:
    """Return the part of a test: `unit` without servers, `spark`, `hosts`, or `real`."""
    path = item.path.relative_to(TESTS).as_posix()
    if any(path == name or path.startswith(f"{name}/") for name in PARTS["spark"]):
        return "spark"
    folder = path.partition("/")[0]
    if folder == "hosts":
        return "hosts"
    if folder == "contract":
        return "real" if _parameters(item) & SERVERS else "unit"
    return "unit" if folder in PARTS["unit"] else "real"


def paths_of(part: str) -> tuple[str, ...]:
    """Return pytest's paths of a part, without what another part names more exactly."""
    others = {name for other, names in PARTS.items() if other != part for name in names}
    inside = sorted(
        name for name in others for folder in PARTS[part] if name.startswith(f"{folder}/")
    )
    return (
        *(f"tests/{name}" for name in PARTS[part]),
        *(f"--ignore=tests/{name}" for name in inside),
    )


def touched(changed: Collection[str]) -> list[str]:
    """Return the unit tests to run before a commit, as paths below the checkout.

    changed: files below the checkout. A test is touched when it has changed, or imports a module that has.
    """
    modules = [
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in changed
        if name.endswith(".py") and not name.startswith("tests/")
    ]
    imports = re.compile("|".join(map(_import_of, modules)) or "(?!)", re.MULTILINE)
    found = {f"tests/unit/{name}" for name in HEART}
    for file in sorted((TESTS / "unit").rglob("test_*.py")):
        name, text = file.relative_to(CHECKOUT).as_posix(), file.read_text()
        if any(name.startswith(f"{folder}/") for folder in found):
            continue
        if name in changed or imports.search(text):
            found.add(name)
    return sorted(found)


def is_selected(items: Sequence[pytest.Item], tier: str) -> list[bool]:
    """Return of each collected test whether it belongs to the tier."""
    seconds = read_durations()["tests"]
    shown = one_of_each(_candidates(items), seconds)
    of_test = [_is_of_test(item, shown) for item in items]
    if tier == "test":
        return of_test
    with_test = tier == "both"
    return [
        with_test if is_first else not is_by_turns(item.nodeid, seconds) or is_due(item.nodeid)
        for item, is_first in zip(items, of_test, strict=True)
    ]


def is_by_turns(name: str, seconds: Mapping[str, float]) -> bool:
    """Return whether a test of the tier `rest`, by pytest's name, runs on one day in TURN_DAYS.

    seconds: of tests, by name.
    """
    if BY_TURNS.search(name):
        return True
    return seconds.get(name, UNKNOWN_S) >= TURNS_S and not name.startswith("tests/hosts/")


def is_due(name: str, day: int | None = None) -> bool:
    """Return whether such a test runs on a day, counted from 1970; None for today."""
    if day is None and os.environ.get(EVERY):
        return True
    return (zlib.crc32(name.encode()) + (today() if day is None else day)) % TURN_DAYS == 0


def today() -> int:
    """Return the day, counted from 1970."""
    return int(time.time() // S_PER_DAY)


def one_of_each(candidates: Mapping[str, Sequence[str]], seconds: Mapping[str, float]) -> set[str]:
    """Return one test of each promise: few tests, and quick ones.

    candidates: the tests of each promise; none leaves the promise out. seconds: of tests.
    """
    chosen: set[str] = set()
    for tests in sorted(candidates.values(), key=len):
        if tests and not chosen.intersection(tests):
            chosen.add(min(tests, key=lambda test: (seconds.get(test, UNKNOWN_S), test)))
    return chosen


def read_durations() -> dict[str, dict[str, float]]:
    """Return seconds by file and by test of the last whole run that was kept: `files`, `tests`."""
    if not DURATIONS.exists():
        return {"files": {}, "tests": {}}
    read: dict[str, dict[str, float]] = json.loads(DURATIONS.read_text())
    return read


def _is_of_test(item: pytest.Item, shown: set[str]) -> bool:
    function = item.nodeid.partition("[")[0]
    is_extra = function in EXTRAS or function.partition("::")[0] in EXTRAS
    match part_of(item), item.path.relative_to(TESTS).parts[0]:
        case "unit", _:
            return True
        case "spark", "unit":
            return "session" not in getattr(item, "fixturenames", ()) or is_extra
        case "hosts", _:
            return False
        case "real", "contract":
            return "rabbitmq" in (names := _parameters(item)) and "blocking" not in names
    return is_extra or item.nodeid in shown


def _parameters(item: pytest.Item) -> set[str]:
    return set(item.callspec.id.split("-")) if hasattr(item, "callspec") else set()


def _candidates(items: Iterable[pytest.Item]) -> dict[str, list[str]]:
    """Return the tests by promise, of those promises that no unit, model or contract test shows."""
    wanted: dict[str, list[str]] = {
        key: []
        for key, tests in guarantees.marked().items()
        if not any(file.split("/")[1] in PARTS["unit"] for file, _ in tests)
    }
    for item in items:
        if item.path.relative_to(TESTS).parts[0] == "hosts" or BY_TURNS.search(item.nodeid):
            continue
        for marker in item.iter_markers("guarantee"):
            for key in marker.args:
                if key in wanted:
                    wanted[key].append(item.nodeid)
    return wanted


def _import_of(module: str) -> str:
    """Return a pattern of the lines that import the module."""
    package, _, name = module.rpartition(".")
    lines = rf"^\s*(?:from|import) {re.escape(module)}\b"
    if not package:
        return lines
    return rf"{lines}|^\s*from {re.escape(package)} import (?:\([^)]*|.*)\b{name}\b"


def _changed() -> set[str]:
    """Return the files that differ from the last commit; all are new where git does not know the checkout."""
    found = set()
    for asked in (("diff", "--name-only", "HEAD"), ("ls-files", "--others", "--exclude-standard")):
        git = subprocess.run(
            ["git", *asked], cwd=CHECKOUT, capture_output=True, text=True, check=False, timeout=60
        )
        found |= set(git.stdout.splitlines())
    return found


if __name__ == "__main__":
    print(" ".join(touched(_changed())))
