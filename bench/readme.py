"""Puts the newest figures into two pages: those that have a goal into the README, all beside the results."""

from __future__ import annotations

from pathlib import Path

from bench.errors import InputInvalid
from bench.figures.form import Results, markdown

__all__ = ["update"]

BEGIN, END = "<!-- figures -->", "<!-- /figures -->"
ALL = "README.md"
ABOUT_ALL = """# All figures

Made by `python -m bench readme` from the files beside it, which also name the machine, its load and
the versions.
In brackets: the least and the greatest of the samples.
"""


def update(readme: Path, results: Path) -> int:
    """Replace what is between the markers, and write ALL beside the results.

    Returns how many files of results there are.

    Raises InputInvalid when there are no results, or no markers.
    """
    found = [Results.load(path) for path in sorted(results.glob("*.json"))]
    if not found:
        raise InputInvalid(f"{results}: no results; `python -m bench figures` measures them")
    text = readme.read_text()
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise InputInvalid(f"{readme}: no {BEGIN} ... {END} in it")
    readme.write_text(f"{head}{BEGIN}\n{markdown(found, only_goals=True)}\n{END}{tail}")
    (results / ALL).write_text(f"{ABOUT_ALL}\n{markdown(found)}\n")
    return len(found)
