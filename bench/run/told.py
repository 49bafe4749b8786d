"""What several runs say in all: a table, what to bear in mind, what is wrong."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.run.tables import COLUMNS, text_table

__all__ = ["Bar", "Told", "faults_of"]


@dataclass(frozen=True, slots=True)
class Bar:
    """look: one for each kind of thing that is compared."""

    name: str
    value: float
    shown: str
    look: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """left: how many columns are words. bars: the number that is looked at first, of each line.

    meant: name -> what it means. faults: which run, and what.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1
    title: str = ""
    bars_title: str = ""
    bars: Sequence[Bar] = ()
    notes: Sequence[str] = ()
    meant: Mapping[str, str] | None = None
    faults: Sequence[str] = ()

    def lines(self, columns: int = COLUMNS) -> list[str]:
        """As text."""
        told = [*textwrap.wrap(self.title, columns)] if self.title else []
        told += text_table(self.head, self.rows, left=self.left, columns=columns)
        told += [line for note in self.notes for line in textwrap.wrap(note, columns)]
        if self.meant:
            told += ["What a confirm means:", *(f"  {k}: {v}" for k, v in self.meant.items())]
        return [*told, *(f"  ! {fault}" for fault in self.faults)]


def faults_of(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Of every run, with its name."""
    return [f"{name}: {fault}" for name, run in results.items() for fault in run["faults"]]
