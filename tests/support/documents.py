"""The code blocks of README, docs and examples, and the comments before them, which say how to test them.

A block is fenced and names its language. Comments stand right before it, and readers of the page do not
see them:

    <!-- not run: REASON -->        it is not checked; the test bounds how many there are
    <!-- file: NAME -->             it is kept as that file beside the page's other files
    <!-- cluster -->                it is run on real brokers
    <!-- cluster, in the background -->    it is a command that goes on, and is stopped with the page
    <!-- cluster, beside it -->     it is one that goes on too, beside the one before it
    <!-- cluster, until: TEXT -->   it is a command that is repeated until it says this
    <!-- cluster, exit 6 -->        it is run, and ends with this exit code
    <!-- hardware: REASON -->       commands that need a real host; each is looked up
    <!-- elsewhere: TEST -->        commands that this test runs; each is looked up
    <!-- first: CODE -->            run before it, in its language: what is published, what fails
    <!-- then: CODE -->             Python, run after it: what must be true now
    <!-- printed -->                text that the Python block before it prints, with its hidden code

Blocks of one page are one program: later blocks use the definitions of earlier ones.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
# Languages and their treatment by a test; a block of any other is a fault.
LANGUAGES = {
    "python": "run",
    "sh": "run where it says so, and each of its commands looked up",
    "sql": "queries of a lake: run by tests/unit/spark/test_lake_page.py",
    "toml": "read",
    "json": "read",
    "{eval-rst}": "not code: what Sphinx inserts, which `make docs` checks",
    "text": "not code: what is printed, a drawing, a file format of our own",
}
# Within a list a block is indented.
_FENCE = re.compile(r"^( *)```(\S*)[ \t]*\n(.*?)^\1```[ \t]*$", re.M | re.S)
_COMMENTS = re.compile(r"(?:<!--(?:(?!-->).)*-->\s*)+\Z", re.S)
_COMMENT = re.compile(r"<!--\s*((?:(?!-->).)*?)\s*-->", re.S)
_KINDS = ("not run", "file", "cluster", "hardware", "elsewhere", "first", "then", "printed")
_MARK = re.compile(
    rf"({'|'.join(_KINDS)})(?:(?:, (in the background|beside it|until|exit \d+))?(?::\s*(.*))?)",
    re.S,
)


@dataclass(frozen=True, slots=True)
class Block:
    """Fenced block. line: of its first line. marks: the contents of its comments, by kind."""

    page: Path
    line: int
    language: str
    text: str
    marks: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def padded(self) -> str:
        """The code behind empty lines up to its place in the page, so that tracebacks name the line."""
        return "\n" * (self.line - 1) + self.text


def pages() -> list[Path]:
    """Return the pages: README first, then CONTRIBUTING, docs, and the READMEs of examples."""
    tops = [ROOT / name for name in ("README.md", "CONTRIBUTING.md")]
    return [*tops, *sorted((ROOT / "docs").rglob("*.md")), *sorted(EXAMPLES.glob("*/README.md"))]


def blocks_of(page: Path) -> list[Block]:
    return list(_blocks(page, page.read_text()))


def files_of(page: Path) -> dict[str, str]:
    """Return name -> text of the files that the page's comments name."""
    return {name: each.text for each in blocks_of(page) if (name := each.marks.get("file"))}


def _blocks(page: Path, text: str) -> Iterator[Block]:
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 2
        before = _COMMENTS.search(text, 0, found.start())
        marks = {} if before is None else _marks(page, line, before[0])
        yield Block(page, line, found[2], textwrap.dedent(found[3]), marks)


def _marks(page: Path, line: int, comments: str) -> dict[str, str]:
    marks: dict[str, str] = {}
    for comment in _COMMENT.findall(comments):
        mark = _MARK.fullmatch(comment)
        if mark is None:
            if comment.split(":")[0] in ("figures", "/figures"):
                continue
            raise ValueError(f"{page}:{line}: no such mark: {comment!r}")
        kind, how, value = mark.groups(default="")
        marks[kind] = value
        if how:
            marks[how] = value
    return marks
