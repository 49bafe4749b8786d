"""Virtual hosts for tests; where they cannot run, CI fails, and other runs say so loudly."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.hosts import lab as labs
from tests.hosts.lab import Image, Lab

MakeLab = Callable[..., Lab]

_UNTESTED: list[str] = []


@pytest.fixture(scope="session")
def images() -> None:
    """Make the images. Where virtual hosts cannot run, fail in CI and skip elsewhere."""
    lacking = labs.missing()
    if not lacking:
        labs.build()
        lacking = labs.missing()
    if lacking and os.environ.get("CI"):
        pytest.fail(f"virtual hosts cannot run here; missing: {'; '.join(lacking)}")
    if lacking:
        _UNTESTED[:] = lacking
        pytest.skip(f"virtual hosts cannot run here; missing: {'; '.join(lacking)}")


@pytest.fixture(scope="module")
def make_lab(images: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeLab]:
    """Function that makes two running hosts: ``make_lab("bare")``; they live as long as the module."""
    with ExitStack() as stack:

        def make(image: Image) -> Lab:
            lab = stack.enter_context(Lab(tmp_path_factory.mktemp("lab"), image=image))
            lab.boot()
            return lab

        yield make


@pytest.fixture(scope="module")
def bare_lab(make_lab: MakeLab) -> Lab:
    """Two hosts as Debian's installer leaves them, with packages that `apt-get install` finds there."""
    return make_lab("bare")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["untested"] = _UNTESTED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a worker of pytest-xdist has found."""
    if lacking := getattr(node, "workeroutput", {}).get("untested"):
        _UNTESTED[:] = lacking


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _UNTESTED:
        terminalreporter.section("NOTHING about mirrors and real hosts was tested", sep="!")
        for line in _UNTESTED:
            terminalreporter.write_line(f"missing here: {line}")
