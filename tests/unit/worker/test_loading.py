"""The app that a name means, and the error when there is none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from messagebus import App, ConfigError
from messagebus.worker.process import load


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory; imported modules are forgotten again."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def fault_of(target: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(target)
    return str(caught.value)


def test_an_app_is_found_in_the_working_directory(here: Path) -> None:
    write(here / "shop1.py", "from messagebus import App\napp = App()\nclass Box: inner = App()\n")
    assert isinstance(load("shop1:app"), App)
    assert load("shop1") is load("shop1:app")
    assert load("shop1:Box.inner") is not load("shop1:app")


def test_a_module_of_a_package_is_found(here: Path) -> None:
    write(here / "shop2/__init__.py", "")
    write(here / "shop2/work.py", "from messagebus import App\norders = App()\n")
    assert isinstance(load("shop2.work:orders"), App)
    assert fault_of("shop2.work") == "shop2.work has no 'app': its apps are orders"


@pytest.mark.parametrize("target", ["", ":app", ".shop:app"])
def test_a_name_must_be_one(target: str) -> None:
    assert fault_of(target).endswith("module:app wanted, as in shop.orders:app")


def test_what_is_not_there_is_told(here: Path) -> None:
    told = f"no module 'nowhere.at' in {here} or sys.path"
    assert fault_of("nowhere.at") == f"{told}; for the app 'at' of a module: nowhere:at"
    assert fault_of("nowhere:app") == f"no module 'nowhere' in {here} or sys.path"
    write(here / "shop3.py", "app = 5\n")
    assert fault_of("shop3:other") == "shop3 has no 'other': there is no App in it"
    assert fault_of("shop3:app") == "shop3:app is int, not a messagebus.App"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import messagebus\n\nno_such_name\n", "NameError: name 'no_such_name' is not defined"),
        ("import no_such_package\n", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("import json\n\njson.loads('{')\n", "JSONDecodeError: Expecting property name"),
        ("import sys\n\nsys.exit('configured wrongly')\n", "SystemExit: configured wrongly"),
        ("\n\nraise BaseException\n", "BaseException"),
    ],
)
def test_a_module_that_does_not_import_is_one_line_with_its_place(
    here: Path, text: str, told: str
) -> None:
    write(here / "bad.py", text)
    fault = fault_of("bad:app")
    assert fault.startswith(f"bad does not import: {told}")
    line = len(text.rstrip().split("\n"))
    assert fault.endswith(f"({here}/bad.py:{line})")


def test_a_wrong_spelling_is_told_with_its_place(here: Path) -> None:
    write(here / "unspelled.py", "app = (\n")
    assert fault_of("unspelled:app").endswith(f"({here}/unspelled.py:1)")


def test_a_wrong_declaration_is_told_where_the_application_makes_it(here: Path) -> None:
    write(
        here / "declares.py",
        "from messagebus import App\napp = App()\n\n@app.subscriber('orders')\ndef f(x: str): ...\n",
    )
    fault = fault_of("declares:app")
    assert fault.startswith("declares does not import: NameInvalid: orders is a topic: say sub")
    assert fault.endswith(f"({here}/declares.py:4)")


def test_the_text_of_an_error_is_bounded(here: Path) -> None:
    write(here / "loud.py", "raise RuntimeError('x' * 10_000_000)\n")
    assert len(fault_of("loud:app")) < 1500
