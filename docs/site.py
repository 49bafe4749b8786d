"""Generator of the API reference: `make docs`. One page for each module that applications import.

A warning of pdoc, such as a name that does not exist, is an error.
"""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path

import pdoc

__all__ = ["MODULES", "write"]

MODULES = (
    "messagebus",
    "messagebus.admin",
    "messagebus.errors",
    "messagebus.testing",
    "messagebus.telemetry.jsonlog",
    "messagebus.telemetry.otel",
    "messagebus.telemetry.prometheus",
    "messagebus.tools.sampler",
    "messagebus.recording.recorder",
    "messagebus.telemetry.tracecontext",
)
FOLDER = Path("out/docs")


def write(folder: Path) -> None:
    """Write the pages into a folder. Raises every warning of pdoc as an error."""
    warnings.simplefilter("error")
    # The fields of a named tuple, whose names pdoc looks for in `collections`.
    warnings.filterwarnings("ignore", "Error parsing type annotation ForwardRef")
    for module in map(importlib.import_module, MODULES):
        for name in module.__all__:  # pdoc sees only what was imported before
            vars(module)[name] = getattr(module, name)
    pdoc.render.configure(show_source=False)
    pdoc.pdoc(*MODULES, output_directory=folder)


if __name__ == "__main__":
    write(FOLDER)
    print(FOLDER / "index.html")
