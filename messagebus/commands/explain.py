"""`messagebus explain`: cause and remedy of an error, from the page of errors, which the wheel has too."""

from __future__ import annotations

import posixpath
import re
from importlib.resources import files

import click

from messagebus.terminal import did_you_mean

_SECTION = re.compile(r"^### (\w+)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^]]*)\]\(([^)]*)\)")
_PLACE = "docs/reference"  # of the page, from which its links count


@click.command(short_help="Print cause and remedy of an error.")
@click.argument("error")
def explain(error: str) -> None:
    """Print what happened, the cause, and the remedy of ERROR.

    ERROR is its name, or the `docs=` of its line in a log.

    \b
    Example:
      messagebus explain NotReady
      messagebus explain docs/reference/errors.md#notready
    """
    page = files("messagebus").joinpath("errors.md").read_text(encoding="utf-8")
    sections = dict(_SECTION.findall(page))
    names = {name.lower(): name for name in sections}
    key = error.rpartition("#")[2].lower()
    if key not in names:
        near = did_you_mean(key, names) or f": {', '.join(sections)}"
        raise click.UsageError(f"no error {error!r}{near}")
    name = names[key]
    text = _LINK.sub(_with_place, sections[name]).replace("**", "").strip()
    click.echo(f"{name}\n\n{text}")


def _with_place(link: re.Match[str]) -> str:
    """Return the words of a link, and the path of its page and its heading in the project."""
    words, to = link.groups()
    page, mark, heading = to.partition("#")
    path = posixpath.normpath(posixpath.join(_PLACE, page)) if page else f"{_PLACE}/errors.md"
    return f"{words} ({path}{mark}{heading})"
