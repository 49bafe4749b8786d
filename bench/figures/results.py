"""The measured figures in ``bench/results/figures.json``, and the pages that are made from them.

The file has each figure once, and of each group of figures when, on what and from which commit it was
measured. ``python -m bench readme`` counts the commits since then, and writes the tables: the README's, and
the page beside the file. Any page gets the figures that it names, ``<!-- figure ID -->...<!-- / -->``. The
samples of all repetitions are in files of their own in ``out/figures``, which no repository keeps.
"""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.environment import CHECKOUT, LOAD_MAX, calm, commit, has_history
from bench.errors import InputInvalid
from bench.figures import chart
from bench.figures.figure import Figure
from messagebus.files import replace_file

RESULTS = CHECKOUT / "bench" / "results" / "figures.json"
RAW = CHECKOUT / "out" / "figures"
README = CHECKOUT / "README.md"
# Pages besides the README that name figures.
PAGES = (CHECKOUT / "docs" / "MEASURING.md", CHECKOUT / "docs" / "SCALE.md")
# A figure beyond one of these is outdated: its age, and the commits since then to what it measures.
DAYS_MAX, COMMITS_MAX = 30, 300
# Beginning of a group's name -> what it measures; the longest one counts.
MEASURED = {
    "": ("messagebus",),
    "measure.audit": ("spark",),
    "measure.overhead": ("bench/harness", "bench/load"),
    "measure.peers": ("messagebus", "bench/clients"),
    "ops": ("messagebus", "ops", "lb", "consumer_lists"),
    "reach.simulated": ("messagebus/core", "messagebus/services/agent"),
}
# In the path of a group whose seconds no machine makes longer.
VIRTUAL = "in virtual time"
GIT_WITHIN_S = 30.0
# Of an environment, what a group keeps.
KEPT = (
    *("path", "loop", "part", "cpu", "cores", "memory_gib", "kernel", "python", "pika", "uvloop"),
    *("rabbitmq", "erlang", "haproxy"),
)
OWN = ("at", "commit", "repeat", "load", "since")


@dataclass(frozen=True, slots=True)
class Source:
    """The measurement of a group. at: UTC. commit: with ``+`` at its end when files differed from it.

    repeat: the command that repeats it. load: processes that wanted to run before it. since: commits from
    there to the file's own to what it measures; None when the commit is unknown. more: versions, machine.
    """

    at: str
    commit: str
    repeat: str
    load: float = 0.0
    since: int | None = 0
    more: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, environment: Mapping[str, Any], repeat: str) -> Source:
        """Return that of an environment of `bench.environment.describe`."""
        load = float(environment.get("load_before", [0.0])[0])
        more = {name: environment[name] for name in KEPT if environment.get(name)}
        return cls(environment["at"], environment["commit"], repeat, load, 0, more)

    def as_json(self) -> dict[str, Any]:
        return {**{name: getattr(self, name) for name in OWN}, **self.more}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Source:
        more = {name: each for name, each in values.items() if name not in OWN}
        return cls(**{name: values[name] for name in OWN}, more=more)

    @property
    def is_busy(self) -> bool:
        """True where other work may have changed the figures: never those in virtual time."""
        return self.load > LOAD_MAX and VIRTUAL not in str(self.more.get("path", ""))

    def remarks(self, on: str) -> str:
        """Return day, commit, and what speaks against the figures. on: the time when the page is made."""
        return ", ".join([f"{self.at[:10]} `{self.commit.rstrip('+')[:8]}`", *self.doubts(on)])

    def doubts(self, on: str) -> list[str]:
        """Return what a figure says wherever it stands: a busy machine, no commit, that it is outdated."""
        found = [f"load {self.load:.1f}"] if self.is_busy else []
        found += ["uncommitted changes"] if self.commit.endswith("+") else []
        days = (_day(on) - _day(self.at)).days
        if self.since is None or self.since > COMMITS_MAX or days > DAYS_MAX:
            found.append("**outdated**")
        return found


def _day(at: str) -> datetime:
    return datetime.fromisoformat(at[:10])


@dataclass(frozen=True, slots=True)
class Results:
    """All figures. at, commit: when and where `since` of all groups was counted. groups: name -> source.

    figures: id -> figure. group_of: id -> the name of its group.
    """

    at: str
    commit: str
    groups: Mapping[str, Source] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)
    group_of: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read the file. Raises InputInvalid for any other file."""
        try:
            found = json.loads(path.read_text())
            groups = {name: Source.from_json(each) for name, each in found["groups"].items()}
            group_of = {each["id"]: each.pop("group") for each in found["figures"]}
            figures = {
                each["id"]: Figure.from_json(each, groups[group_of[each["id"]]].repeat)
                for each in found["figures"]
            }
            return cls(found["at"], found["commit"], groups, figures, group_of)
        except OSError as fault:
            raise InputInvalid(f"{path}: cannot read: {fault.strerror}") from fault
        except (ValueError, KeyError, TypeError, AttributeError) as fault:
            raise InputInvalid(f"{path}: not a file of figures: {fault}") from fault

    def save(self, path: Path) -> None:
        """Write the file, a line for each group and each figure."""
        groups = [
            f"{json.dumps(name)}: {json.dumps(source.as_json())}"
            for name, source in sorted(self.groups.items())
        ]
        figures = [
            json.dumps({**figure.as_json(), "group": self.group_of[id]}, ensure_ascii=False)
            for id, figure in sorted(self.figures.items())
        ]
        head = f'{{\n"at": "{self.at}", "commit": "{self.commit}",\n'
        parts = (("groups", "{}", groups), ("figures", "[]", figures))
        body = ",\n".join(
            f'"{name}": {ends[0]}\n ' + ",\n ".join(lines) + f"\n{ends[1]}"
            for name, ends, lines in parts
        )
        replace_file(path, f"{head}{body}\n}}\n")

    def with_group(self, name: str, source: Source, figures: Iterable[Figure]) -> Results:
        """Return the results with the figures of a group, in place of all that it had."""
        gone = {id for id, of in self.group_of.items() if of == name or of.startswith(f"{name}.")}
        found = {figure.id: figure for figure in figures}
        gone |= found.keys()
        group_of = {id: of for id, of in self.group_of.items() if id not in gone}
        group_of |= dict.fromkeys(found, name)
        left = {id: figure for id, figure in self.figures.items() if id not in gone}
        groups = {of: self.groups[of] for of in set(group_of.values()) - {name}}
        return dataclasses.replace(
            self, groups={**groups, name: source}, figures={**left, **found}, group_of=group_of
        )

    def counted(self, at: str, now: str) -> Results:
        """Return the results with the commits of each group up to the commit `now`."""
        groups = {
            name: dataclasses.replace(source, since=_commits(name, source.commit, now))
            for name, source in self.groups.items()
        }
        return dataclasses.replace(self, at=at, commit=now, groups=groups)

    def source_of(self, id: str) -> Source:
        return self.groups[self.group_of[id]]

    def goal(self, id: str) -> str:
        """Format the goal of a figure for a table in Markdown. None is met beside other work."""
        figure, repeated = self.figures[id], " by every repetition"
        if figure.met is False:
            return f"{figure.goal} (**not met{repeated if figure.is_unsure else ''}**)"
        busy = figure.goal and self.source_of(id).is_busy
        return f"{figure.goal} (not judged)" if busy else figure.goal

    def row(self, id: str, words: str) -> str:
        """Return the row of a figure. words: its description there."""
        remarks = self.source_of(id).remarks(self.at)
        return (
            f"| {self._described(id, words)} | {self.figures[id]} | {self.goal(id)} | {remarks} |"
        )

    def short_row(self, id: str, words: str) -> str:
        """Return the row of a figure without its goal."""
        remarks = self.source_of(id).remarks(self.at)
        return f"| {self._described(id, words)} | {self.figures[id]} | {remarks} |"

    def in_words(self, id: str) -> str:
        """Return the value of a figure for a sentence."""
        doubts = self.source_of(id).doubts(self.at)
        return f"{self.figures[id]}" + (f" ({', '.join(doubts)})" if doubts else "")

    def _described(self, id: str, words: str) -> str:
        part = re.search(r"--part (\d+)", self.figures[id].repeat)
        return f"{words}, 1/{part[1]} of the run" if part else words


def _commits(group: str, since: str, now: str) -> int | None:
    """Count the commits to what a group measures; None when git does not know one of the two."""
    paths = MEASURED[max((each for each in MEASURED if group.startswith(each)), key=len)]
    argv = ["git", "-C", str(CHECKOUT), "rev-list", "--count"]
    argv += [f"{since.rstrip('+')}..{now}", "--", *paths]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=GIT_WITHIN_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return int(done.stdout) if done.returncode == 0 else None


def check_keeping(say: Callable[[str], None]) -> None:
    """Wait for a calm machine before a measurement that is kept.

    Raises InputInvalid when files of the checkout differ from its commit.
    """
    _refuse_changes(commit())
    calm(say)


def _refuse_changes(commit: str) -> None:
    if commit.endswith("+"):
        raise InputInvalid(
            "--keep: files differ from the commit, so no commit has what is measured: commit them, or "
            "measure without --keep"
        )


def keep(
    group: str,
    figures: Iterable[Figure],
    environment: Mapping[str, Any],
    *,
    publish: bool,
    results: Path = RESULTS,
    raw: Path = RAW,
) -> Path:
    """Write the figures of a group with all samples into a file of its own, and return its path.

    publish: put them into `results` too, in place of all that the group had. Raises InputInvalid for
        those of a changed checkout, once their own file is written.
    """
    found, stamp = list(figures), environment["at"].replace(":", "")
    raw.mkdir(parents=True, exist_ok=True)
    path = raw / f"{group}-{stamp}.json"
    rows = [dataclasses.asdict(figure) for figure in found]
    replace_file(path, json.dumps({"environment": environment, "figures": rows}, indent=1) + "\n")
    if publish:
        _refuse_changes(environment["commit"])
        source = Source.of(environment, found[0].repeat)
        known = Results.load(results) if results.exists() else Results(source.at, source.commit)
        known.with_group(group, source, found).save(results)
    return path


BEGIN, END = "<!-- figures -->", "<!-- /figures -->"
NAMED = re.compile(r"(<!-- figure (\S+) -->).*?(<!-- / -->)", re.DOTALL)
HEAD = ("| | value | goal | measured |", "|---|---|---|---|")
HEAD_SHORT = ("| | value | measured |", "|---|---|---|")
PUBLISH = "client.publish.w1000.send_many"
# The README's rows, in this order: ratios where another system was measured by turns.
FIRST = {
    f"{PUBLISH}.ratio_perf_test": "Confirmed publishes of 1 KB: rate, times Java PerfTest's",
    f"{PUBLISH}.ratio_pika_async": "... times pika's",
    f"{PUBLISH}.ratio_aio_pika": "... times aio-pika's",
    f"{PUBLISH}.cpu_ratio_pika_async": "... CPU time of the client, times pika's",
    "client.consume.ratio_perf_test": "Received and acked one by one, 1 KB: rate, times Java PerfTest's",
    "client.consume.ratio_aio_pika": "... times aio-pika's",
    "client.consume.cpu_ratio_pika_async": "... CPU time of the client, times pika's",
    "client.latency.confirm_p99_ratio": "At half of the broker's rate: p99 until confirmed, times pika's",
    "client.gap.kill_s": "A broker is killed: longest time of its publishers without a confirm",
    "client.gap.lost": "Confirmed messages lost in 200 kills, freezes and other faults, compared by id",
}
CHART = Path("docs", "images", "figures.svg")  # beside the README
CHART_TITLE = "messagebus beside other clients of one RabbitMQ; 1 x is the other client"
# Title -> figure -> the other client.
CHART_ROWS = {
    "Confirmed publishes of 1 KB a second": {
        f"{PUBLISH}.ratio_kombu": "kombu",
        f"{PUBLISH}.ratio_pika_blocking": "pika's BlockingConnection",
        f"{PUBLISH}.ratio_aio_pika": "aio-pika",
        f"{PUBLISH}.ratio_pika_async": "pika's SelectConnection",
        f"{PUBLISH}.ratio_perf_test": "Java PerfTest",
    },
    "Messages of 1 KB received and acked a second": {
        "client.consume.ratio_aio_pika": "aio-pika",
        "client.consume.ratio_pika_async": "pika's SelectConnection",
        "client.consume.ratio_perf_test": "Java PerfTest",
    },
    "CPU time of the client for each: less is better": {
        f"{PUBLISH}.cpu_ratio_pika_async": "publish: pika",
        "client.consume.cpu_ratio_pika_async": "receive: pika",
    },
}
_PEERS = (
    *("messagebus_1_fsync", "pika_1_fsync", "aio_pika_1_fsync", "kafka_1_fsync"),
    *("messagebus_3_fsync", "native_3_fsync", "kafka_3_page_cache", "artemis_cluster_3_fsync"),
)
# The rows of the page beside the file after those, by section. A page of more than ROWS_MAX is no page.
ROWS_MAX = 60
MORE = {
    "Publishing and consuming": (
        *(f"{PUBLISH}.{each}" for each in ("rate", "cpu_us", "ratio_kombu")),
        *(f"client.latency.{each}_ms" for each in ("confirm_p50", "confirm_p99", "receipt_p99")),
        *("client.threads.64.rate", "client.redundant.send_many.ratio"),
        *(f"client.consume.{each}" for each in ("rate", "cpu_us", "many_rate")),
        *("client.batch.publish.50x200.rate", "client.batch.consume.50x200.rate"),
        *("client.handlers.app_cpu_ratio_pika_async", "client.mesh.consumer_mb"),
    ),
    "Other systems, by turns": (
        *(f"measure.peers.{each}.rate" for each in _PEERS),
        *(f"measure.seed_s{number}.n2_w50.confirmed_ratio" for number in (1, 2)),
        "measure.seed_s2.n3_w50.confirmed_ratio",
    ),
    "Faults and operations": (
        *(
            "client.gap.freeze_s",
            "ops.remove.gap_s",
            "ops.add.gap_s",
            "ops.add.attach_s",
        ),
        *("ops.restart.gap_s", "ops.reload.gap_s", "ops.replace.s", "ops.lost"),
        "ops.failover.serving_s",
    ),
    "Features": (
        *("feature.order.added_us", "client.consume.dedup_cpu_ratio_pika_async"),
        *("feature.dedup.redis_rate", "feature.spool.accept_rate", "feature.outbox.relay_rate"),
        *("feature.outbox.notified_ms", "feature.replay.rate", "feature.recorder.publish_us"),
    ),
    "Gateway": ("gateway.publish_rate", "gateway.batch_rate", "gateway.pull_rate"),
    "Measuring": (
        *("measure.overhead.message_us", "measure.audit.ratio"),
        *(
            f"measure.capacity.{each}.1000_x1_1000.broker_cpu_us"
            for each in ("fsync", "page-cache")
        ),
    ),
}


def update(
    results: Path = RESULTS, readme: Path = README, pages: Iterable[Path] = PAGES
) -> Results:
    """Write the figures of a file into the README, its chart, other pages, and README.md beside the file.

    Raises InputInvalid when there are no markers in the README, or for a figure that the file has not.
    """
    found = Results.load(results)
    head, begin, rest = readme.read_text().partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise InputInvalid(f"{readme}: no {BEGIN} ... {END} in it")
    written = {page: named(page.read_text(), found) for page in pages}
    table = "\n".join(in_short(found))
    written[readme] = named(f"{head}{BEGIN}\n{table}\n{END}{tail}", found)
    written[results.with_name("README.md")] = "\n".join(page_of(found)) + "\n"
    (picture := readme.parent / CHART).parent.mkdir(parents=True, exist_ok=True)
    written[picture] = chart.ratios([*bars(found)], CHART_TITLE)
    for page, content in written.items():
        page.write_text(content)
    return found


def named(text: str, results: Results) -> str:
    """Return the page with the current values of the figures that it names. Raises InputInvalid."""
    if unknown := {each[2] for each in NAMED.finditer(text)} - results.figures.keys():
        raise InputInvalid(f"no results have {', '.join(sorted(unknown))}")
    return NAMED.sub(lambda each: f"{each[1]}{results.in_words(each[2])}{each[3]}", text)


def in_short(results: Results) -> list[str]:
    """Return the README's table. Goals, and what else was measured, are on the page beside the file."""
    rows = [results.short_row(id, words) for id, words in FIRST.items() if id in results.figures]
    return [*HEAD_SHORT, *rows]


def bars(results: Results) -> Iterator[chart.Bar]:
    """Yield the bars of the README's chart."""
    for title, rows in CHART_ROWS.items():
        for id, other in rows.items():
            if figure := results.figures.get(id):
                less = "cpu_ratio" in id
                yield chart.Bar(title, other, figure.value, figure.between, less_is_better=less)


def goals_met(results: Results) -> str:
    """Count the goals that are met, missed, and not judged because of other work on the machine."""
    judged = [id for id, figure in results.figures.items() if figure.goal]
    missed = [id for id in judged if results.figures[id].met is False]
    busy = [id for id in judged if id not in missed and results.source_of(id).is_busy]
    met = len(judged) - len(missed) - len(busy)
    return (
        f"Of {len(judged)} goals {met} are met and {len(missed)} are not; {len(busy)} are not judged, "
        f"because the machine had a load above {LOAD_MAX:g} before"
    )


def page_of(results: Results) -> Iterator[str]:
    """Yield the lines of the page beside the file."""
    yield from (
        "# Figures",
        "",
        "Made by `python -m bench readme` from [figures.json](figures.json), which has all figures, their",
        "commands, the machine and all versions. In brackets: the least and the greatest of the repetitions.",
        f"*Outdated*: more than {DAYS_MAX} days, or {COMMITS_MAX} commits to what it measures, before "
        f"{results.at[:10]}.",
        "",
        f"{goals_met(results)}.",
    )
    for title, rows in {"In short": FIRST, **MORE}.items():
        yield from ("", f"## {title}", "", *HEAD)
        for id in rows:
            if id in results.figures:
                yield results.row(id, FIRST.get(id, results.figures[id].what))


def counted_now(results: Path = RESULTS) -> None:
    """Count the commits since each group was measured, up to this checkout's commit, in the file.

    The file stays as it is where no mark of a figure changes, or no commits can be counted.
    """
    if not has_history():
        return
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    found = Results.load(results)
    now = found.counted(at, commit().rstrip("+"))
    if any(
        source.doubts(at) != found.groups[name].doubts(found.at)
        for name, source in now.groups.items()
    ):
        now.save(results)
