"""What a playbook has done, on disk before the next step begins, so that an interrupted run resumes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

__all__ = ["Journal", "unfinished"]


class Journal:
    """One run of one playbook: a file with one JSON object a line; renamed when it is finished.

    done: names of the steps that were done, in their order. proofs: what they proved.
    facts: what the run began with, which the cluster may not tell any more when it is resumed.
    """

    def __init__(self, folder: Path, name: str) -> None:
        """folder: made when it is needed. name: of the plan; its unfinished run is taken up."""
        self._file = folder / f"{name.replace(' ', '-')}.jsonl"
        lines = _read(self._file)
        self.done = tuple(str(line["step"]) for line in lines if "step" in line)
        self.proofs = tuple(str(line["proof"]) for line in lines if line.get("proof"))
        self.facts: dict[str, Any] = next((one["facts"] for one in lines if "facts" in one), {})

    @property
    def is_resumed(self) -> bool:
        return bool(self.facts or self.done)

    def begin(self, facts: dict[str, Any]) -> None:
        """Keep what the run begins with. On disk when it returns."""
        self._append({"facts": facts, "at": time.strftime("%FT%T%z")})
        self.facts = facts

    def record(self, step: str, took_s: float, proof: str = "") -> None:
        """Keep that this step was done, and what it proved. On disk when it returns."""
        line = {"step": step, "took_s": round(took_s, 3), "at": time.strftime("%FT%T%z")}
        self._append({**line, "proof": proof} if proof else line)
        self.done = (*self.done, step)
        self.proofs = (*self.proofs, proof) if proof else self.proofs

    def _append(self, line: dict[str, Any]) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def finish(self) -> None:
        """The run is over; its file stays under another name."""
        if self._file.exists():
            self._file.rename(self._file.with_suffix(f".{time.strftime('%Y%m%dT%H%M%S')}"))
        self.done, self.proofs, self.facts = (), (), {}


def unfinished(folder: Path, *, but: str) -> list[str]:
    """File names, without their end, of the runs there that were begun and are not finished."""
    mine = but.replace(" ", "-")
    return sorted(file.stem for file in folder.glob("*.jsonl") if file.stem != mine)


def _read(file: Path) -> list[dict[str, Any]]:
    """The whole lines; the last one may have been cut off by a crash."""
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]
