"""What a playbook has done, on disk before the next step begins, so that an interrupted run resumes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

__all__ = ["Journal"]


class Journal:
    """One run of one playbook: a file with one JSON object a line; removed from sight when finished.

    done: names of the steps that were done, in their order.
    """

    def __init__(self, folder: Path, name: str) -> None:
        """folder: made where missing. name: of the plan; its unfinished run is taken up."""
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"{name.replace(' ', '-')}.jsonl"
        self.done = tuple(str(line["step"]) for line in _read(self._file))

    @property
    def is_resumed(self) -> bool:
        return self._file.exists()

    def record(self, step: str, took_s: float) -> None:
        """Keep that this step was done. On disk when it returns."""
        line = {"step": step, "took_s": round(took_s, 3), "at": time.strftime("%FT%T%z")}
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.done = (*self.done, step)

    def finish(self) -> None:
        """The run is over; its file stays under another name."""
        if self._file.exists():
            self._file.rename(self._file.with_suffix(f".{time.strftime('%Y%m%dT%H%M%S')}"))
        self.done = ()


def _read(file: Path) -> list[dict[str, Any]]:
    """The whole lines; the last one may have been cut off by a crash."""
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]
