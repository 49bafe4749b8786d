"""The documents' site, into out/docs: `make docs`. A warning of Sphinx, such as a broken link, is an error.

Settings are in docs/conf.py. Here is what docstrings become: they are plain text with `names` in single
backticks, lines of parameters (``name: meaning``) and indented examples.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

__all__ = ["MODULES", "as_rst", "write"]

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
    "messagebus.integrations.asgi",
    "messagebus.integrations.asyncapi",
    "messagebus.integrations.cloudevents",
    "messagebus.integrations.codecs",
    "messagebus.integrations.depends",
    "messagebus.integrations.django",
    "messagebus.integrations.flask",
    "messagebus.integrations.sharing",
    "messagebus.integrations.topics",
)
SOURCE = Path(__file__).resolve().parent
FOLDER = Path("out/docs")
_PARAMETER = re.compile(r"([a-z_]\w*(?:, [a-z_]\w*)*):(?: (.*)|$)")
_PAGE = re.compile(r"\bdocs/([\w/-]+)\.md")


def write(folder: Path) -> bool:
    """Write the site into a folder. Returns whether all went without a warning; warnings are on stderr."""
    from sphinx.cmd.build import build_main  # half a second, for this alone

    how = ("-b", "html", "--quiet", "--fail-on-warning", "--fresh-env")
    return build_main([*how, str(SOURCE), str(folder)]) == 0


def as_rst(docstring: str, parameters: Iterable[str] = ()) -> str:
    """Return a docstring in the language that Sphinx reads.

    Lines of parameters become a list, indented text an example, and names of pages links.
    parameters: names that begin a new line of the list where one of them is explained within a line.
    """
    names = "|".join(parameters)
    if names:
        docstring = re.sub(rf"(?<=[.;)]) (?=(?:{names})(?:, (?:{names}))*: )", "\n", docstring)
    blocks = re.split(r"\n\s*\n", docstring.strip("\n"))
    return _PAGE.sub(r":doc:`/\1`", "\n\n".join(map(_block_as_rst, blocks)))


def _block_as_rst(block: str) -> str:
    lines = block.splitlines()
    if lines[0].startswith("    "):
        return f".. code-block:: {_language(block)}\n\n{block}"
    if any(map(_PARAMETER.match, lines)):
        return "\n".join(_parameters(lines))
    if any(line.startswith(" ") for line in lines):
        return "::\n\n" + "\n".join(f"    {line}" for line in lines)
    return block


def _language(block: str) -> str:
    try:
        compile(re.sub(r"^    ", "", block, flags=re.M), "", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError:
        return "text"
    return "python"


def _parameters(lines: list[str]) -> Iterator[str]:
    inside = False
    for line in lines:
        if match := _PARAMETER.match(line):
            inside = True
            names = ", ".join(f"**{name}**" for name in match[1].split(", "))
            yield from ("", f"- {names}: {match[2] or ''}")
        elif inside and (line[0].isspace() or line[0].islower()):
            yield f"  {line.strip()}"
        elif inside:  # a sentence behind the last of them
            inside = False
            yield from ("", line)
        else:
            yield line


if __name__ == "__main__":
    if not write(FOLDER):
        sys.exit(1)
    print(FOLDER / "index.html")
