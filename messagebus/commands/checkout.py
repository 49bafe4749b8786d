"""Programs that run from the checkout, such as `python -m ops`, in a Python without their libraries."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from itertools import pairwise

from messagebus.terminal import printable

WRONG_USE = 2


def check_library(package: str, library: str) -> None:
    """End `python -m PACKAGE` with what to do where this Python lacks a library of it. For its `__init__`.

    Does nothing where another program imports the package, and nothing for a module of it that runs by
    itself: `python -m ops.locked` makes the environment, before any library is there.
    """
    if _is_program(package) and find_spec(library) is None:
        what = f"python -m {package}: {sys.executable} has no {library!r}"
        todo = (
            "run `. .venv/bin/activate` in the checkout (`ops/local/install.sh python` makes .venv)"
        )
        print(printable(f"{what}: {todo}"), file=sys.stderr)  # click may be what is missing
        sys.exit(WRONG_USE)


def _is_program(package: str) -> bool:
    """Return True if Python runs with `-m PACKAGE`; only orig_argv has its name during the import."""
    return any(pair == ("-m", package) for pair in pairwise(sys.orig_argv))
