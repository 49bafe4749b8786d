"""The page of the guarantees of messagebus: each promise with the tests that show it.

The promises are in docs/guarantees.toml, and tests name theirs by a marker. Both together make
docs/GUARANTEES.md:

    python -m docs.guarantees
"""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

__all__ = ["PAGE", "is_long", "marked", "page", "promises"]

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "GUARANTEES.md"
# Not by Python's own parser: pytest asks in each of its workers, and 370 files take seconds.
MARKERS = re.compile(r"^ *@pytest\.mark\.guarantee\(([^)]*)\)", re.MULTILINE)
FUNCTION = re.compile(r"^ *(?:async )?def (\w+)", re.MULTILINE)
KEY = re.compile('"([^"]+)"')

HEAD = """\
# Guarantees

Made by `python -m docs.guarantees` from docs/guarantees.toml and from the markers of the tests.
A test's name states the promise that it shows. Tests in `tests/fault` and `tests/integration` run on real
brokers, those in `tests/hosts` on two virtual hosts with real disks, which need root's rights.
`make test` runs at least one test of each promise. `make test-all` runs the others: each
day the short tests, each third day tests of 20 s or more and controls, which leave out the code that keeps a
promise (`control`). A promise that is shown on virtual hosts alone is marked *in `test-all`*.

The order that is kept is that of *first* deliveries: per publisher, per key, per broker; of topics with
partitions that of first completions, per key, over all publishers and brokers. A redelivered message arrives
after messages that others got meanwhile. A publisher that lost its link may store unanswered messages again,
behind later ones; with partitions later messages wait for them.

Not guaranteed: order across brokers without partitions; exactly-once delivery; anything about a broker
whose disk is lost. After a kill these messages may be delivered twice: messages that were delivered and are
unacknowledged (audits call them *owed*), messages that the publisher had sent without an answer (*unknown*;
the retry carries the same id), and messages that were acked without proof that the broker applied the ack
(AMQP does not confirm acks). Audits list the three kinds separately.
"""


def promises() -> dict[str, dict[str, str]]:
    """Read the promises: group -> key -> text."""
    return tomllib.loads((ROOT / "docs" / "guarantees.toml").read_text())


def marked() -> dict[str, list[tuple[str, str]]]:
    """Read the markers of all tests: key -> (file, name of the test), in the order of files."""
    found = defaultdict(list)
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        for name, key in _markers_of(file):
            found[key].append((str(file.relative_to(ROOT)), name))
    return dict(found)


def page(
    groups: Mapping[str, Mapping[str, str]], tests: Mapping[str, list[tuple[str, str]]]
) -> str:
    """Render the page as Markdown."""
    lines = [HEAD]
    for title, texts in groups.items():
        lines.append(f"## {title}\n")
        for key, text in texts.items():
            shown = tests.get(key, [])
            mark = " *In `test-all`.*" if is_long(shown) else ""
            lines.append(f"**{text}.**{mark}\n")
            lines += [f"- `{name}` ([{Path(file).name}](../{file}))" for file, name in shown]
            lines.append("")
    return "\n".join(lines)


def is_long(tests: Sequence[tuple[str, str]]) -> bool:
    """Return whether only tests on virtual hosts show it."""
    return all(file.startswith("tests/hosts/") for file, _ in tests)


def _markers_of(file: Path) -> Iterator[tuple[str, str]]:
    text = file.read_text()
    for marker in MARKERS.finditer(text):
        test = FUNCTION.search(text, marker.end())
        assert test, f"{file}: a marker marks no function"
        yield from ((test[1], key) for key in KEY.findall(marker[1]))


if __name__ == "__main__":
    PAGE.write_text(page(promises(), marked()))
