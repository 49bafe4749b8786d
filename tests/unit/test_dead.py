"""Functions, methods and classes of the product that only tests reach."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = (
    *("bench", "clients", "consumer_lists", "examples", "inventory", "lb", "messagebus", "ops"),
    *("reports", "spark"),
)
TEMPLATES = ("messagebus", "ops", "lb", "reports")
WORD = re.compile(r"[A-Za-z_]\w*")
# Decorators that leave a function to its callers. Any other one hands it to a command, a route or a fixture.
PLAIN = {
    *("abstractmethod", "asynccontextmanager", "cache", "cached_property", "classmethod"),
    *("contextmanager", "dataclass", "final", "lru_cache", "overload", "override", "property"),
    *("runtime_checkable", "setter", "staticmethod", "total_ordering", "wraps"),
}
# Bases whose methods are called by their own names alone.
OURS = {"ABC", "Enum", "Generic", "IntEnum", "NamedTuple", "Protocol", "StrEnum", "TypedDict"}
# Name -> who calls it.
EXCEPTIONS = {
    "GuardedConnection._read_frame": "pika, whose method it replaces",
    "Program.format_epilog": "click, where it writes --help",
    "_Server.capture_signals": "uvicorn, whose method it replaces",
    "Migration": "Django, for each file of migrations",
    "pytest_addoption": "pytest",
    "pytest_configure": "pytest",
}

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True)
class Found:
    """A definition that somebody must use. inside: uses of its own name in its own body."""

    where: str
    name: str
    owner: str
    inside: int

    @property
    def key(self) -> str:
        return f".{self.name}" if self.owner else self.name

    @property
    def path(self) -> str:
        return f"{self.owner}.{self.name}" if self.owner else self.name


def dead(sources: Mapping[str, str], known: Iterable[str] = ()) -> list[Found]:
    """Return what none of the sources uses. known: names that are used elsewhere.

    A use of a function or class is its name, as a variable, an attribute, an import or a text without
    spaces; of a method, an attribute or such a text. Names are not resolved: any attribute of a method's
    name is a use of it. What a package exports in ``__all__`` is used, with
    its methods, as are methods that replace those of a class from elsewhere.
    """
    trees = {file: ast.parse(text) for file, text in sources.items()}
    uses = Counter[str](known)
    for tree in trees.values():
        uses.update(_uses(tree))
    classes = {
        node.name for tree in trees.values() for node in tree.body if isinstance(node, ast.ClassDef)
    }
    exported = {name for tree in trees.values() for name in _exported(tree)}
    return [
        each
        for file, tree in trees.items()
        for each in _definitions(tree, file, classes)
        if uses[each.key] <= each.inside and not {each.owner, each.name} & exported
    ]


def _definitions(tree: ast.Module | ast.ClassDef, file: str, classes: set[str]) -> Iterator[Found]:
    is_foreign = isinstance(tree, ast.ClassDef) and bool(
        {_last(base) for base in tree.bases} - (classes - {tree.name}) - OURS
    )
    owner = tree.name if isinstance(tree, ast.ClassDef) else ""
    for node in tree.body:
        if isinstance(node, Definition) and not _is_called_by_others(node, is_foreign):
            key = f".{node.name}" if owner else node.name
            inside = sum(use == key for use in _uses(node))
            yield Found(f"{file}:{node.lineno}", node.name, owner, inside)
        if isinstance(node, ast.ClassDef):
            yield from _definitions(node, file, classes)


def _is_called_by_others(node: Definition, is_foreign: bool) -> bool:
    is_hidden, is_dunder = node.name[0] == "_", node.name[:2] == node.name[-2:] == "__"
    decorators = {_last(each) for each in node.decorator_list}
    return is_dunder or bool(decorators - PLAIN) or (is_foreign and not is_hidden)


def _last(node: ast.expr) -> str:
    match node:
        case ast.Call(func=inner) | ast.Subscript(value=inner):
            return _last(inner)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _uses(tree: ast.AST) -> Iterator[str]:
    """Yield the names that are read, with a dot before those that may be methods' too."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Load()):
                yield from (name, f".{name}")
            case ast.alias(name=name):
                yield name.rpartition(".")[2]
            case ast.ClassDef(body=body):
                for each in body:
                    if isinstance(each, ast.Assign) and isinstance(each.value, ast.Name):
                        yield f".{each.value.id}"  # another name of a method
            case ast.Constant(value=str() as text) if " " not in text:
                for name in WORD.findall(text):
                    yield from (name, f".{name}")


def _exported(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id="__all__")])
                | ast.AnnAssign(target=ast.Name(id="__all__"))
            ):
                yield from _uses(node)


def product() -> dict[str, str]:
    return {
        str(path.relative_to(ROOT)): path.read_text()
        for kit in PRODUCT
        for path in sorted((ROOT / kit).rglob("*.py"))
        if "tests" not in path.parts
    }


def in_templates() -> Iterator[str]:
    for kit in TEMPLATES:
        for path in ROOT.glob(f"{kit}/**/templates/*"):
            for name in WORD.findall(path.read_text()):
                yield f".{name}"


def test_nothing_of_the_product_is_reached_by_tests_alone() -> None:
    found = [each for each in dead(product(), in_templates()) if each.path not in EXCEPTIONS]
    assert [f"{each.where} {each.path}" for each in found] == [], "delete it and its tests"


def test_what_only_tests_reach_is_named_with_its_line() -> None:
    planted = {
        "one.py": "class Used:\n"
        "    def asked(self): return self.inner\n"
        "    @property\n"
        "    def inner(self): return 1\n"
        "    def planted(self): planted = 1; return planted\n"
        "def again(n): return again(n - 1)\n"
        "class Kept(dict):\n"
        "    def copy(self): return None\n",
        "two.py": "from one import Used, Kept\ngetattr(Used(), 'asked')()\n",
    }
    assert [f"{each.where} {each.path}" for each in dead(planted)] == [
        "one.py:5 Used.planted",
        "one.py:6 again",
    ]
    public = {**planted, "__init__.py": "__all__ = ['Used', 'again']\n"}
    assert dead(public) == []
