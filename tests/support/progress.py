"""Output of jobs without progress: a slow machine prints lines of it that a quick one does not."""

from __future__ import annotations

import re

# The lines of messagebus.terminal.Progress where standard error is no terminal, of tasks of Spark.
_OF_TASKS = re.compile(r"^[\w-]+: [\d,]+ (?:of [\d,]+ )?tasks?, [^\n]*\n", re.MULTILINE)


def without_progress(said: str) -> str:
    """Return what a job of Spark said, without its lines of progress."""
    return _OF_TASKS.sub("", said)
