"""The tests themselves: their folders, planted faults, runs, versions."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Set
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from docs import guarantees
from ops.local.cluster import LocalCluster
from tests import tiers
from tests.mutants.run import load
from tests.run import CHECKOUT, LATE_MAX, _grown, _lines_of, _others, _verdict
from tests.support import starts
from tests.versions import NEWEST, OF_OTHER_SERVERS, OTHERS, SHARES, shares

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "tests" / "unit"
KITS = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
# Of clients, which has those of other languages too, one is in Python.
PYTHON = [*KITS, "clients/conform"]
PACKAGES = sorted(
    {path.parent.relative_to(ROOT) for name in PYTHON for path in (ROOT / name).rglob("*.py")}
)
# Package -> the tests that run it, because it is all sockets, processes or sessions.
TESTED_ELSEWHERE = {"messagebus/_io/admin": "tests/integration/test_parked.py"}
NAMES = r"(?: import (\([^)]*\)|.*))?"
IMPORT = re.compile(
    rf"^(?:from|import) ((?:{'|'.join([*KITS, 'clients'])})\b[\w.]*){NAMES}", re.MULTILINE
)
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


def modules() -> dict[str, Path]:
    """Return every module of the product, by its name."""
    paths = [path for name in PYTHON for path in (ROOT / name).rglob("*.py")]
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in paths
    }


def imports_of(source: str, known: Set[str]) -> set[str]:
    """Return the known modules that a source imports, inside functions too; not those for type checkers."""
    found: set[str] = set()
    nodes: list[ast.AST] = [ast.parse(source)]
    while nodes:
        match nodes.pop():
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=others):
                nodes += others
            case ast.Import(names=names):
                found |= {each.name for each in names}
            case ast.ImportFrom(module=str(package), names=names):
                inner = {f"{package}.{each.name}" for each in names}
                found |= inner | ({package} if inner - set(known) else set())
            case ast.expr():  # holds no statement
                pass
            case node:
                nodes += ast.iter_child_nodes(node)
    return found & known


def test_no_modules_import_each_other_not_even_inside_functions() -> None:
    paths = modules()
    assert len(paths) > 400
    graph = {
        name: imports_of(path.read_text(), paths.keys()) - {name} for name, path in paths.items()
    }
    TopologicalSorter(graph).prepare()  # a CycleError names those of a circle


def test_an_import_inside_a_function_closes_a_circle_and_one_for_type_checkers_does_not() -> None:
    known = {"a.b", "a.c", "a"}
    late = "def f() -> None:\n    from a.b import x\n    from a import c"
    assert imports_of(late, known) == {"a.b", "a.c"}
    assert imports_of("if TYPE_CHECKING:\n    import a.b\nelse:\n    from a import y", known) == {
        "a"
    }


METHODS_MAX, ATTRIBUTES_MAX, LINES_MAX = 30, 20, 60
# What users see of a whole subject in one class.
FACES = {"Publisher", "AsyncPublisher", "Consumer", "AsyncConsumer", "MemoryBus", "LocalCluster"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def attributes_of(cls: ast.ClassDef) -> set[str]:
    """Return the names that its methods set on `self`."""
    found = set()
    for node in ast.walk(cls):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                found.add(name)
    return found


def lines_of(function: Function) -> int:
    """Return the number of its lines without its docstring."""
    match function.body[0]:
        case ast.Expr(value=ast.Constant(value=str())) as text:
            said = (text.end_lineno or 0) - text.lineno + 1
        case _:
            said = 0
    return (function.end_lineno or 0) - function.lineno + 1 - said


def too_large(source: str) -> list[str]:
    """Return the classes and functions of a source that are beyond the bounds, each with its size."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ClassDef(name=name) if name not in FACES:
                methods = {each.name for each in node.body if isinstance(each, Function)}
                attributes = attributes_of(node)
                if len(methods) > METHODS_MAX or len(attributes) > ATTRIBUTES_MAX:
                    found.append(f"{name}: {len(methods)} methods, {len(attributes)} attributes")
            case ast.FunctionDef() | ast.AsyncFunctionDef() if lines_of(node) > LINES_MAX:
                found.append(f"{node.name}: {lines_of(node)} lines")
    return found


def test_no_class_and_no_function_is_larger_than_one_can_read() -> None:
    sources = {name: path.read_text() for name, path in modules().items()}
    found = {name: large for name, source in sources.items() if (large := too_large(source))}
    assert found == {}


def test_methods_attributes_and_lines_are_counted() -> None:
    methods = "\n".join(f"    def m{n}(self): self.a{n % 22} = 0" for n in range(31))
    assert too_large(f"class A:\n{methods}") == ["A: 31 methods, 22 attributes"]
    assert too_large(f"class Consumer:\n{methods}") == []
    text = "    '''a\n\n    b'''"
    body = "\n".join(["    pass"] * 60)
    assert too_large(f"def f():\n{text}\n{body}") == ["f: 61 lines"]
    assert too_large(f"def f():\n{text}\n    pass") == []


def test_no_test_folder_is_a_package() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []


FILES = sorted((ROOT / "tests" / "mutants").glob("*.toml"))
MACHINES = sorted(
    path.stem for path in (ROOT / "messagebus" / "core").glob("*.py") if path.stem != "__init__"
)
FAULTS_MIN = 3


def faults(path: Path) -> list[dict[str, str]]:
    found: list[dict[str, str]] = tomllib.loads(path.read_text())["mutant"]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_is_replaced_stands_once_in_its_file(path: Path) -> None:
    stale = [
        (fault["why"], count)
        for fault in faults(path)
        if (count := (ROOT / fault["file"]).read_text().count(fault["find"])) != 1
    ]
    assert stale == [], "adapt `find` to the source, so that the fault is planted again"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_tests_that_must_notice_a_planted_fault_are_there(path: Path) -> None:
    tests = {test for mutant in load(path) for test in mutant.tests}
    assert [test for test in tests if not (ROOT / test).exists()] == []


def test_every_machine_has_its_planted_faults() -> None:
    planted = Counter(Path(fault["file"]).stem for path in FILES for fault in faults(path))
    assert {name for name in MACHINES if planted[name] < FAULTS_MIN} == set()


def test_more_than_some_tests_that_pass_at_their_second_try_only_fail_the_run() -> None:
    some = {f"tests/fault/test_{n}.py::test": "TimeoutError" for n in range(LATE_MAX)}
    more = some | {"one more": "AssertionError"}
    assert _verdict([0, 0], {}) == _verdict([0, 0], some) == 0
    assert _verdict([0, 0], more) == 1
    assert _verdict([0, -2], more) == 2
    assert _lines_of({}) == []
    assert _lines_of(some)[:2] == [
        f"{LATE_MAX} at the second try only:",
        "  tests/fault/test_0.py::test: TimeoutError",
    ]
    assert f"more than {LATE_MAX}:" in _lines_of(more)[0]


def test_a_file_that_takes_a_third_more_is_named_on_a_machine_of_any_speed() -> None:
    before = {"a": 10.0, "b": 20.0, "c": 30.0, "d": 40.0, "new": 0.0}
    twice_as_slow = {name: 2 * seconds for name, seconds in before.items()}
    assert _grown(twice_as_slow, before) == []
    grown = twice_as_slow | {"d": 2 * 40 * 1.4, "new": 50.0}
    assert _grown(grown, before) == ["d, 112 s for 80 s"]
    assert _grown(before, {}) == []


def test_every_file_of_tests_is_in_one_part() -> None:
    taken: list[Path] = []
    for part in tiers.PARTS:
        paths = tiers.paths_of(part)
        ignored = [CHECKOUT / path.removeprefix("--ignore=") for path in paths if path[0] == "-"]
        for path in (CHECKOUT / each for each in paths if each[0] != "-"):
            assert path.exists()
            files = [path] if path.is_file() else path.rglob("test_*.py")
            taken += [file for file in files if not {file, *file.parents} & {*ignored}]
    # The contract is in two parts: in memory, and on brokers.
    contract = [*CHECKOUT.glob("tests/contract/test_*.py")]
    assert sorted(taken) == sorted([*(CHECKOUT / "tests").rglob("test_*.py"), *contract])


def test_every_promise_has_a_test_in_the_first_tier_or_is_marked_on_its_page() -> None:
    marked = guarantees.marked()
    named = [f"{file}::{name}" for tests in marked.values() for file, name in tests]
    elsewhere = {
        key: [f"{file}::{name}" for file, name in tests if not file.startswith("tests/hosts/")]
        for key, tests in marked.items()
    }
    chosen = tiers.one_of_each(elsewhere, tiers.read_durations()["tests"])
    assert chosen <= {*named}
    for key, tests in elsewhere.items():
        assert chosen.intersection(tests) or guarantees.is_long(marked[key])
    assert "tests/hosts/" in str(marked["mirrored-survives-the-host"])


def test_of_tests_that_show_a_promise_the_quickest_is_chosen_and_one_for_two_promises() -> None:
    seconds = {"slow": 60.0, "quick": 1.0, "both": 5.0}
    assert tiers.one_of_each({"a": ["slow", "quick"]}, seconds) == {"quick"}
    assert tiers.one_of_each({"a": ["both"], "b": ["quick", "both"]}, seconds) == {"both"}
    assert tiers.one_of_each({"a": []}, seconds) == set()


def test_what_runs_by_turns_is_known_by_name_or_takes_long_and_has_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(tiers.EVERY, raising=False)
    quick = {
        "tests/fault/test_a.py::test_control_without_it": 1.0,
        "tests/fault/test_a.py::test_b[control]": 1.0,
        "tests/contract/test_a.py::test_b[blocking-rabbitmq-fsync]": 1.0,
    }
    long = {"tests/fault/test_a.py::test_b": tiers.TURNS_S}
    for name in quick | long:
        assert tiers.is_by_turns(name, quick | long)
        assert sum(tiers.is_due(name, day) for day in range(tiers.TURN_DAYS)) == 1
    every_day = {
        "tests/fault/test_a.py::test_an_operator_is_in_control[asked]": 1.0,
        "tests/contract/test_a.py::test_b[asyncio-rabbitmq]": 1.0,
        "tests/contract/test_a.py::test_b[blocking-memory]": 1.0,
        "tests/hosts/test_a.py::test_b": tiers.TURNS_S,
    }
    for name in [*every_day, "tests/fault/test_a.py::test_a_new_one"]:
        assert not tiers.is_by_turns(name, every_day)
    monkeypatch.setenv(tiers.EVERY, "1")
    assert all(tiers.is_due(name) for name in quick | long)


def test_a_test_without_a_turn_today_keeps_its_seconds_until_it_is_gone() -> None:
    here = "tests/unit/test_layout.py::test_no_test_folder_is_a_package"
    before = {here: 50.0, f"{here}[x]": 60.0, "tests/unit/test_layout.py::test_gone": 50.0}
    before |= {"tests/unit/test_gone.py::test_a": 50.0, "tests/unit/test_layout.py::test_a": 1.0}
    assert _others({here: 40.0}, before) == {f"{here}[x]": 60.0}


def test_what_the_first_tier_runs_beside_promises_is_there() -> None:
    for name in tiers.EXTRAS:
        file, _, test = name.partition("::")
        assert (f"def {test}(" if test else "def test_") in (ROOT / file).read_text()


def test_a_change_touches_the_tests_that_import_what_has_changed() -> None:
    heart = tiers.touched([])
    assert "tests/unit/core" in heart
    more = set(
        tiers.touched(["lb/render.py", "docs/explanation/order.md", "tests/unit/lb/test_main.py"])
    )
    assert {"tests/unit/lb/test_render.py", "tests/unit/lb/test_main.py", *heart} <= more
    assert "tests/unit/lb/test_health.py" not in more
    assert "tests/unit/reports" not in more


def test_starts_are_summed_up_also_those_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_cluster: LocalCluster, _name: str) -> None:
        raise OSError("no port")

    monkeypatch.setattr(LocalCluster, "up", lambda _cluster: None)
    monkeypatch.setattr(LocalCluster, "start", fail)
    monkeypatch.setenv(starts.FILE, str(tmp_path / "starts"))
    starts.note_starts()
    cluster = LocalCluster(tmp_path / "c")
    cluster.up()
    for _ in range(2):
        with pytest.raises(OSError, match="no port"):
            cluster.start("mb1")
    noted = (tmp_path / "starts").read_text()
    (tmp_path / "starts").write_text(f"{noted}up 2.0\n")
    assert starts.summed(tmp_path / "starts") == (
        "clusters brought up: 2, 2 s; brokers and agents started: 2, 0 s"
    )
    assert starts.summed(tmp_path / "none").startswith("clusters brought up: 0, 0 s")


def test_all_of_contract_and_fault_has_its_turn() -> None:
    named = {path for share in SHARES for path in share if "::" not in path}
    files = [*CHECKOUT.glob("tests/contract/test_*.py"), *CHECKOUT.glob("tests/fault/test_*.py")]
    assert {str(file.relative_to(CHECKOUT)) for file in files} == (named | OF_OTHER_SERVERS) - {
        "tests/integration/test_balancer_haproxy.py"
    }
    assert all(Path(CHECKOUT / path).is_file() for path in named)


def test_the_newest_brokers_are_tested_every_day_and_each_release_has_all_in_turn() -> None:
    days = len(SHARES) * (1 + len(OTHERS))
    for name in (NEWEST, *OTHERS):
        seen = {
            path
            for day in range(1, days + 1)
            for s in shares(day)
            if s.release.name == name and not s.python
            for path in s.paths
        }
        assert seen >= {path for share in SHARES for path in share}
    for day in range(1, days + 1):
        (newest,) = [s for s in shares(day) if s.release.name == NEWEST and not s.python]
        assert "tests/fault/test_rights_and_names.py" in newest.paths
        assert any(
            "balancers_ask_for_the_gate" in path or "test_topics" in path for path in newest.paths
        )
        assert len(newest.paths) == len(set(newest.paths))
