"""Documents: their links, and the reference."""

from __future__ import annotations

import ast
import collections
import dataclasses
import enum
import importlib
import inspect
import itertools
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs import guarantees
from docs.site import MODULES, as_rst
from messagebus import BusConfig, ConsumerConfig, PublisherConfig, errors
from messagebus.commands.exits import CODES
from messagebus.observing.rules import RULES
from messagebus.services.gateway import problems
from ops.local.certificates import issue_missing
from tests.support.documents import blocks_of

ROOT = Path(__file__).resolve().parents[2]


def test_every_promise_has_its_tests_and_the_page_says_so() -> None:
    groups, tests = guarantees.promises(), guarantees.marked()
    keys = [key for texts in groups.values() for key in texts]
    assert len(keys) > 90
    assert sorted(tests) == sorted(keys)
    assert guarantees.page(groups, tests) == guarantees.PAGE.read_text()


def test_every_invariant_of_the_design_has_its_promise() -> None:
    """Numbered as in the design; 6 to 9 come with redundant publishing."""
    texts = [text for group in guarantees.promises().values() for text in group.values()]
    shown = {int(n) for text in texts for n in re.findall(r"\(invariant (\d+)\)", text)}
    assert shown == set(range(1, 23)) - {6, 7, 8, 9}


def test_every_environment_variable_of_clients_is_in_the_documents() -> None:
    told = "".join((ROOT / name).read_text() for name in ("README.md", "docs/WIRE.md"))
    for name in ("MESSAGEBUS_BROKER", "MESSAGEBUS_LIST_URL", "MESSAGEBUS_USER"):
        assert name in told


def test_every_setting_has_its_variable_and_default_in_the_how_to() -> None:
    text = (ROOT / "docs" / "reference" / "settings.md").read_text()
    told = set(re.findall(r"`(MESSAGEBUS_[A-Z_]+)`", text))
    kinds: dict[str, Any] = {
        "": BusConfig(),
        "PUBLISHER_": PublisherConfig(),
        "CONSUMER_": ConsumerConfig(),
    }
    wanted = {
        f"MESSAGEBUS_{begin}{field.name.upper()}": getattr(config, field.name)
        for begin, config in kinds.items()
        for field in dataclasses.fields(config)
    }
    wanted["MESSAGEBUS_LIST_URL"] = wanted.pop("MESSAGEBUS_LIST_URLS")
    assert wanted.keys() - told == set()
    for name, default in wanted.items():
        if isinstance(default, int | float):
            (line,) = [line for line in text.splitlines() if f"`{name}`" in line]
            shown = f"{default:g}" if isinstance(default, float) else str(default).lower()
            assert f"`{shown}`" in line, name


def test_the_example_of_settings_is_good(tmp_path: Path) -> None:
    issue_missing(tmp_path, {"orders": ()})
    for name in ("user", "password"):
        (tmp_path / name).write_text(f"{name} of an example")
    text = (ROOT / "docs" / "reference" / "messagebus.toml").read_text()
    path = tmp_path / "messagebus.toml"
    path.write_text(text.replace("/etc/messagebus", str(tmp_path)))
    bus = BusConfig.from_file(path)
    assert (bus.tls, bus.current_user()) == (True, "user of an example")
    assert PublisherConfig.from_file(path).batch["queue:jobs"].linger_s == 0.005
    assert ConsumerConfig.from_file(path).prefetch == 100


def documents() -> list[Path]:
    """Return every text in Markdown that the repository keeps, those of kits and examples too.

    The package leads to one of docs/, which is here once.
    """
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = [ROOT / name for name in names.splitlines()]
    return [path for path in found if path.exists() and not path.is_symlink()]


def prose_of(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)


def anchors_of(page: Path) -> set[str]:
    """Return the fragments that GitHub and the site give its headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", prose_of(page), re.M):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w -]", "", shown).replace(" ", "-")
        again = (f"{slug}-{n}" for n in itertools.count(1))
        found.add(slug if slug not in found else next(each for each in again if each not in found))
    return found


def is_broken(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    if not target.exists():
        return True
    return bool(anchor) and target.suffix == ".md" and anchor not in anchors_of(target)


def test_links_between_documents_lead_to_a_file_and_to_a_heading() -> None:
    broken = {
        f"{page.relative_to(ROOT)}: {link}"
        for page in documents()
        for link in re.findall(r"\]\(([^)\s]+)\)", prose_of(page))
        if not re.match(r"[a-z]+:", link) and is_broken(page, link)
    }
    assert broken == set()


def test_a_link_to_a_heading_that_is_gone_is_broken() -> None:
    page = ROOT / "docs" / "OPERATIONS.md"
    assert is_broken(page, "#no-such-heading")
    assert is_broken(page, "WIRE.md#no-such-heading")
    assert is_broken(page, "no-such-page.md")
    assert not is_broken(page, "OPERATIONS.md#first-look")


def test_pages_that_code_and_settings_name_exist() -> None:
    """Messages, docstrings, alert rules and comments name pages by their place in the repository."""
    listed = ["git", "grep", "-ohIE", r"\bdocs/[A-Za-z/-]+\.(md|toml)(#[a-z-]+)?"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    named = set(names.split())
    assert len(named) > 40
    assert {name for name in named if is_broken(ROOT / "README.md", name)} == set()


def test_the_readme_names_this_version() -> None:
    readme = (ROOT / "README.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"Version {project['version']}, alpha" in readme
    assert "Development Status :: 3 - Alpha" in project["classifiers"]
    wheels = re.findall(r"messagebus_rabbitmq-(.+?)-py3-none-any\.whl", readme)
    assert set(wheels) == {project["version"]}


def test_the_readme_lists_every_extra() -> None:
    readme = (ROOT / "README.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    install, _, _ = readme.partition("## Install")[2].partition("\n## ")
    assert set(project["optional-dependencies"]) <= set(re.findall(r"[a-z]+", install))


WITHIN_S = 300


def exported() -> list[tuple[str, Any]]:
    """Return every public name, with its object."""
    found = []
    for module in map(importlib.import_module, MODULES):
        found += [(f"{module.__name__}.{name}", getattr(module, name)) for name in module.__all__]
    return found


def name_of(each: object) -> str:
    return each if isinstance(each, str) else ""


def classes() -> list[tuple[str, Any]]:
    return [(name, each) for name, each in exported() if inspect.isclass(each)]


def texts_of(cls: type) -> str:
    """Return its docstring and those that it inherits."""
    return "\n".join(vars(each).get("__doc__") or "" for each in cls.__mro__[:-1])


def methods_of(cls: type) -> Iterator[tuple[str, Any]]:
    for name, member in vars(cls).items():
        if not name.startswith("_") and (
            inspect.isroutine(member) or isinstance(member, property | classmethod | staticmethod)
        ):
            yield name, getattr(cls, name)


def fields_of(cls: type) -> list[str]:
    if dataclasses.is_dataclass(cls):
        return [each.name for each in dataclasses.fields(cls) if not each.name.startswith("_")]
    names: tuple[str, ...] = getattr(cls, "_fields", ())  # of a named tuple
    return list(names) or [*getattr(cls, "__annotations__", {})] * (dict in cls.__bases__)


def described_below(cls: type) -> set[str]:
    """Return the members of an enum that are followed by a text."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = set()
    for first, second in zip(body.body, body.body[1:], strict=False):
        if isinstance(first, ast.Assign) and isinstance(second, ast.Expr):
            found |= {target.id for target in first.targets if isinstance(target, ast.Name)}
    return found


def test_all_that_is_exported_is_looked_at() -> None:
    assert len(exported()) > 80
    assert len(classes()) > 60


@pytest.mark.parametrize(("name", "thing"), exported(), ids=name_of)
def test_every_class_and_function_has_a_docstring(name: str, thing: Any) -> None:
    if inspect.isclass(thing) or inspect.isroutine(thing):
        assert vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__, name


@pytest.mark.parametrize(("name", "cls"), classes(), ids=name_of)
def test_every_method_and_property_has_a_docstring(name: str, cls: type) -> None:
    assert [each for each, member in methods_of(cls) if not inspect.getdoc(member)] == []


@pytest.mark.parametrize(("name", "cls"), classes(), ids=name_of)
def test_every_field_is_described_by_its_class(name: str, cls: type) -> None:
    text = texts_of(cls)
    assert [each for each in fields_of(cls) if not re.search(rf"\b{each}\b", text)] == []


@pytest.mark.parametrize(
    ("name", "cls"), [each for each in classes() if issubclass(each[1], enum.Enum)], ids=name_of
)
def test_every_member_of_an_enum_is_described(name: str, cls: type[enum.Enum]) -> None:
    assert {each.name for each in cls} - described_below(cls) == set()


def test_the_site_is_written_without_a_warning_and_has_every_public_name(tmp_path: Path) -> None:
    """It runs in a process of its own: Sphinx loads modules that are loaded late."""
    write = (
        "import pathlib, sys; from docs.site import write; assert write(pathlib.Path(sys.argv[1]))"
    )
    written = subprocess.run(
        [sys.executable, "-c", write, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert written.returncode == 0, written.stderr
    pages = "".join(page.read_text() for page in (tmp_path / "reference" / "api").glob("*.html"))
    assert [name for name, _ in documented() if f'id="{name}"' not in pages] == []
    assert (tmp_path / "searchindex.js").exists()


def documented() -> list[tuple[str, str]]:
    """Return name -> page of what the pages of the API document."""
    found = []
    for page in sorted((ROOT / "docs" / "reference" / "api").glob("*.md")):
        module = ""
        for directive, name in re.findall(r"^\.\. (\w+):: ([\w.]+)$", page.read_text(), re.M):
            if directive == "currentmodule":
                module = name
            elif directive != "automodule":
                found.append((f"{module}.{name}", page.name))
    return found


def test_every_public_name_is_on_one_page_of_the_api() -> None:
    names = [name for name, _ in documented()]
    assert sorted(names) == sorted({*names})
    homes = {id(getattr(errors, name)) for name in errors.__all__}
    wanted = {
        name
        for name, thing in exported()
        if not (name.startswith("messagebus.") and name.count(".") == 1 and id(thing) in homes)
    }
    assert wanted == {*names}


def test_every_class_is_used_in_an_example_of_its_page() -> None:
    """Beside its import; the examples run: tests/unit/test_docs_blocks.py."""
    folder = ROOT / "docs" / "reference" / "api"
    words = {
        page.name: collections.Counter(words_of_examples(page)) for page in folder.glob("*.md")
    }
    of_classes = {name for name, thing in exported() if inspect.isclass(thing)}
    pages = [(name, page) for name, page in documented() if name in of_classes]
    assert len(pages) > 90
    assert [name for name, page in pages if words[page][name.rpartition(".")[2]] < 2] == []


def words_of_examples(page: Path) -> list[str]:
    blocks = [block.text for block in blocks_of(page) if block.language == "python"]
    return re.findall(r"\w+", "\n".join(blocks))


def test_the_index_names_every_page_once() -> None:
    pages = {page for page in (ROOT / "docs").rglob("*.md") if page.name != "index.md"}
    for index in (ROOT / "docs" / "index.md", ROOT / "docs" / "reference" / "api" / "index.md"):
        links = re.findall(r"^- \[.*?\]\((\S+)\)", index.read_text(), re.M)
        named = [(index.parent / link).resolve() for link in links]
        assert len(named) == len({*named})
        pages -= {*named}
    assert pages == set()


def test_a_docstring_becomes_a_list_of_its_parameters_an_example_and_links() -> None:
    text = """Do it.

    bus.publish()

size: in bytes;
    at least 1. name, key: as in `Message`.
other: docs/guides/spool.md.
Raises Stopped.

tree
    branch
"""
    assert (
        as_rst(text, ["size", "name", "key"])
        == """Do it.

.. code-block:: python

    bus.publish()


- **size**: in bytes;
  at least 1.

- **name**, **key**: as in `Message`.

- **other**: :doc:`/guides/spool`.

Raises Stopped.

::

    tree
        branch"""
    )


@pytest.mark.parametrize(("name", "cls"), classes(), ids=name_of)
def test_every_attribute_that_an_instance_sets_is_described_or_has_an_underscore(
    name: str, cls: type
) -> None:
    if cls.__module__.startswith("messagebus"):
        made_of = inspect.signature(inspect.getattr_static(cls, "__init__")).parameters
        words = f"{texts_of(cls)} {[*made_of]}"
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
        attributes = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "made")
        }
        missing = [
            each
            for each in sorted(attributes)
            if not each.startswith("_") and not re.search(rf"\b{each}\b", words)
        ]
        assert missing == [], f"{name}: public, and its docstring has no word about {missing}"


def public_errors() -> dict[str, type[errors.MessageBusError]]:
    """Return every public error by its name, those of integrations too."""
    return {cls.__name__: cls for _, cls in classes() if issubclass(cls, errors.MessageBusError)}


def test_every_public_error_leads_to_its_own_section_and_every_section_has_its_error() -> None:
    page = ROOT / "docs" / "reference" / "errors.md"
    led_to = {name: cls.docs for name, cls in public_errors().items() if cls.docs}
    assert public_errors().keys() - led_to.keys() == {"MessageBusError"}, "which nothing raises"
    assert [name for name, docs in led_to.items() if is_broken(ROOT / "README.md", docs)] == []
    headings = re.findall(r"^### (\w+)$", page.read_text(), re.M)
    assert sorted(led_to.values()) == sorted(
        f"docs/reference/errors.md#{name.lower()}" for name in headings if name in led_to
    )
    assert {*headings} == {*public_errors()}


def test_the_page_that_a_problem_of_the_gateway_names_is_there() -> None:
    assert not is_broken(ROOT / "README.md", problems.DOCS)
    assert not any(
        is_broken(ROOT / "README.md", docs) for docs in problems.DOCS_OF_OUTCOMES.values()
    )


def test_every_public_error_has_its_row_its_exit_code_and_its_section() -> None:
    page = ROOT / "docs" / "reference" / "errors.md"
    text, anchors = page.read_text(), anchors_of(page)
    rows = dict(re.findall(r"^\| \[`(\w+)`\]\(#\w+\) \| (.*) \|$", text, re.M))
    assert sorted(rows) == sorted(public_errors())
    for name, row in rows.items():
        cls = public_errors()[name]
        parents, code, _again = row.split(" | ")
        assert parents == ", ".join(f"`{base.__name__}`" for base in cls.__bases__), name
        mapped = next(CODES[each] for each in cls.__mro__ if each in CODES)
        assert cls is errors.ChannelRefused or code == str(int(mapped)), name
        assert name.lower() in anchors, name


def test_every_error_without_subclasses_has_its_cause_and_remedy() -> None:
    text = (ROOT / "docs" / "reference" / "errors.md").read_text()
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", text, re.M | re.S))
    for name, cls in public_errors().items():
        if not [each for each in cls.__subclasses__() if each.__name__ in public_errors()]:
            parts = re.findall(r"^- \*\*(.*?):\*\* \S", sections[name], re.M)
            assert parts == ["What happened", "Cause", "Remedy"], name


def test_every_alert_has_its_row_with_its_time_and_its_section() -> None:
    text = (ROOT / "docs" / "OPERATIONS.md").read_text()
    row = r"^\| `(\w+)` \| \w+ \| ([\w ]+) \| .* \| \[.*\]\((#[a-z-]+)\) \|$"
    units = {"s": 1, "min": 60, "h": 3600}
    told = [
        (name, 0 if after == "at once" else int(after.split()[0]) * units[after.split()[1]], anchor)
        for name, after, anchor in re.findall(row, text, re.M)
    ]
    assert told == [
        (rule.name, rule.for_s, rule.manual.removeprefix("docs/OPERATIONS.md")) for rule in RULES
    ]
