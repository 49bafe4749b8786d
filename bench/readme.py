"""Puts the newest figures into the README, between its two markers."""

from __future__ import annotations

from pathlib import Path

from bench.errors import InputInvalid
from bench.figures.form import Results, markdown

__all__ = ["update"]

BEGIN, END = "<!-- figures -->", "<!-- /figures -->"


def update(readme: Path, results: Path) -> int:
    """Replace what is between the markers. Returns how many files of results there are.

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
    readme.write_text(f"{head}{BEGIN}\n{markdown(found)}\n{END}{tail}")
    return len(found)
