"""Writing of the newest figures into the pages that show them.

The README gets the most important ones, and the page beside the results gets all. Any page gets the figures
that it names, ``<!-- figure ID -->...<!-- / -->``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bench.errors import InputInvalid
from bench.figures.form import Figure, Results, goal, markdown, newest, value
from messagebus.terminal import plural

BEGIN, END = "<!-- figures -->", "<!-- /figures -->"
NAMED = re.compile(r"(<!-- figure (\S+) -->).*?(<!-- / -->)", re.DOTALL)
ALL = "README.md"
# The rows in this order, met or not.
FIRST = {
    "client.publish.w1000.send_many.rate": "Safe publishes of 1 KB, one process, one broker",
    "client.publish.w1000.send_many.ratio_perf_test": "... times Java PerfTest's",
    "client.publish.w1000.send_many.cpu_us": "... CPU of a message in the client",
    "client.consume.rate": "Received and acked one by one, 1 KB, one process",
    "client.consume.ratio_perf_test": "... times Java PerfTest's",
    "client.consume.cpu_us": "... CPU of a message in the client",
    "client.batch.publish.50x200.rate": "Safe publishes of 200 bytes, 50 in a batch",
    "measure.latency_matrix.1024.confirm_p50_ms": "Publish to confirm at 3,000/s of 1 KB, median",
    "measure.latency_matrix.1024.confirm_p99.9_ms": "... 99.9 %",
    "measure.seed_s2.n3_w50.confirmed_ratio": "50 publishers, 50 consumers, 3 nodes: times a native cluster",
    "client.gap.kill_s": "A broker is killed: longest time of its publishers without a confirm",
    "client.gap.freeze_s": "A broker freezes: the same",
    "client.gap.lost": "Confirmed messages lost in 200 such events",
    "ops.add.attach_s": "A broker is added: until all consumers are attached",
    "ops.restart.gap_s": "All brokers restarted in turn: longest time without a confirm, above a quiet one's",
    "ops.lost": "Confirmed messages lost in all operations",
    "ops.failover.serving_s": "A host loses power: until its mirrored broker serves again",
    "client.mesh.consumer_mb": "Memory of a consumer process, 50 consumers on 64 brokers",
    "measure.overhead.message_us": "What `bench` itself adds to a message, both ends",
    "measure.audit.10m.ratio": "Audit of 10 + 10 million rows by Spark: times DuckDB's CPU",
}
ABOUT_ALL = """# All figures

Made by `python -m bench readme` from the files beside it, which also name the machine, its load and
the versions.
In brackets: the least and the greatest of the samples.
"""


def read_results(folder: Path) -> list[Results]:
    """Read all results of a folder. Raises InputInvalid when there are none."""
    found = [Results.load(path) for path in sorted(folder.glob("*.json"))]
    if not found:
        raise InputInvalid(f"{folder}: no results; `python -m bench figures` measures them")
    return found


def update(readme: Path, results: Path, pages: Iterable[Path] = ()) -> int:
    """Replace the figures between the markers of the README and other pages; write ALL beside the results.

    Returns the number of files of results. Raises InputInvalid when there are no results, no markers in the
    README, or for a figure that no results have.
    """
    found = read_results(results)
    text = readme.read_text()
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise InputInvalid(f"{readme}: no {BEGIN} ... {END} in it")
    known = {name: figure for name, (figure, _) in newest(found).items()}
    written = {page: named(page.read_text(), known) for page in pages}
    written[readme] = named(f"{head}{BEGIN}\n{in_short(found)}\n{END}{tail}", known)
    written[results / ALL] = f"{ABOUT_ALL}\n{markdown(found)}\n"
    for page, content in written.items():
        page.write_text(content)
    return len(found)


def named(text: str, known: Mapping[str, Figure]) -> str:
    """Return the page with the current values of the figures that it names. Raises InputInvalid."""
    if unknown := {each[2] for each in NAMED.finditer(text)} - known.keys():
        raise InputInvalid(f"no results have {', '.join(sorted(unknown))}")
    return NAMED.sub(lambda each: f"{each[1]}{value(known[each[2]])}{each[3]}", text)


def in_short(results: Sequence[Results]) -> str:
    """Return the table of the most important figures, and the number of met goals."""
    known = newest(results)
    rows = [
        f"| {words}{known[name][0].remarks} | {value(known[name][0])} | {goal(known[name][0])} |"
        for name, words in FIRST.items()
        if name in known
    ]
    judged = [figure for figure, _ in known.values() if figure.goal]
    met = sum(figure.met is not False for figure in judged)
    return "\n".join(
        [
            "| | value | goal |",
            "|---|---|---|",
            *rows,
            "",
            f"Of {plural(len(judged), 'figure')} that {'has' if len(judged) == 1 else 'have'} a goal {met} "
            f"meet{'s' * (met == 1)} it: [all figures](bench/results/README.md).",
        ]
    )
