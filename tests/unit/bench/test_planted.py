"""Small runs with one planted fault each: every page, number and exit code of bench notices it."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bench.analysis.report import latency_series
from bench.analysis.result import gather, percentiles
from bench.cli import main
from bench.load.bodies import Filler, stamped
from messagebus.recording.events import body_hash
from messagebus.recording.files import Anchor
from messagebus.recording.manifest import Manifest
from tests.support.runs import MEASURED_S, START_NS, WARM_UP_S, S, write_run

Write = Callable[[Path], None]
FROM_S, KILLED = WARM_UP_S + 2, {"at_s": WARM_UP_S + 2, "what": "kill", "broker": 1, "lasts_s": 3}
# Seconds without an answer: three of them; or all to the end of the load.
OUTAGE, WITHOUT_END = range(FROM_S, FROM_S + 3), range(FROM_S, WARM_UP_S + MEASURED_S)

PLANTED: dict[str, tuple[Write, str]] = {
    "an outage": (partial(write_run, outage=OUTAGE), "600 publishes did not end confirmed"),
    "a kill that nothing survives": (
        partial(write_run, outage=WITHOUT_END, disturbances=[KILLED]),
        "1,600 publishes did not end confirmed",
    ),
    "an outage by a kill": (
        partial(write_run, outage=OUTAGE, disturbances=[KILLED]),
        "600 publishes did not end confirmed",
    ),
    "a system that falls behind a kill": (
        partial(write_run, behind_s=4.0, disturbances=[KILLED]),
        "did not keep up",
    ),
    "a loss": (partial(write_run, lost=3), "3 confirmed and never delivered"),
    "nothing at all": (
        partial(write_run, outage=range(WARM_UP_S + MEASURED_S)),
        "nothing was confirmed in the measured part",
    ),
    "a process that died": (partial(write_run, complete=False), "ended by itself"),
}


@dataclass(frozen=True)
class Reported:
    folder: Path
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Reported]:
    """The report of each planted fault, and of a run without one; each is made once."""
    place = tmp_path_factory.mktemp("planted")

    @functools.cache
    def made(name: str) -> Reported:
        folder = place / name.replace(" ", "-") / "1"
        write, _ = PLANTED[name] if name else (write_run, "")
        write(folder)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["report", str(folder)])
        return Reported(folder, code, out.getvalue(), err.getvalue())

    return made


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_on_every_page_and_in_the_exit_code(
    reported: Callable[[str], Reported], name: str
) -> None:
    found, told = reported(name), PLANTED[name][1]
    assert found.code == 7
    assert told in found.out
    assert told in found.err
    for page in ("report.txt", "report.html", "result.json"):
        assert told in (found.folder / page).read_text()


@pytest.mark.parametrize("name", PLANTED)
def test_a_comparison_with_it_is_a_regression(
    reported: Callable[[str], Reported],
    tmp_path: Path,
    name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is in one run of two; the profiles differ only in the acts on brokers."""
    whole = reported("").folder
    for arm, first in (("a", whole), ("b", reported(name).folder)):
        for number, run in ((1, first), (2, whole)):
            (tmp_path / arm / str(number)).mkdir(parents=True)
            values = json.loads((run / "result.json").read_text())
            values["profile"] = json.loads((whole / "result.json").read_text())["profile"]
            (tmp_path / arm / str(number) / "result.json").write_text(json.dumps(values))
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "a")]) == 0
    capsys.readouterr()
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 7
    assert "REGRESSION" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "outage"),
    [("an outage by a kill", OUTAGE), ("a kill that nothing survives", WITHOUT_END)],
)
def test_an_outage_is_as_long_as_it_was_wherever_time_is_told(
    reported: Callable[[str], Reported], name: str, outage: range
) -> None:
    folder, silence_s = reported(name).folder, len(outage)
    result = gather(folder)
    assert result.silence_s() == pytest.approx(silence_s, abs=0.05)
    found = json.loads((folder / "result.json").read_text())
    assert found["longest_silence_s"] == result.silence_s()
    assert found["never_confirmed"] == len(outage) * 200
    text = (folder / "report.txt").read_text().splitlines()
    (silence,) = (line for line in text if "silence of a publisher" in line)
    assert silence.split()[-2:] == [f"{result.silence_s():,.2f}", "s"]
    # Beside the percentiles, how many publishes they know nothing of.
    for words in ("intended to confirmed", "sent to confirmed"):
        (line,) = (line for line in text if words in line)
        assert f"  {len(outage) * 200:,}  " in line
    (tile,) = (line for line in text if "confirm, median" in line)
    assert f"{len(outage) * 200:,} never confirmed" in tile
    (disturbance,) = (line.split() for line in text if line.strip().startswith("kill"))
    assert disturbance[-3] == f"{len(outage) * 200:,}"
    assert float(disturbance[-2]) == pytest.approx(silence_s, abs=0.05)


def test_no_line_is_drawn_through_an_outage(reported: Callable[[str], Reported]) -> None:
    for name, gap in (("an outage", [*OUTAGE]), ("", [])):
        series = latency_series(gather(reported(name).folder))
        # Two measures, two percentiles.
        assert len(series) == 4
        for each in series:
            assert [x for x, y in zip(each.x, each.y, strict=True) if math.isnan(y)] == gap


def test_what_comes_twice_is_no_rate(reported: Callable[[str], Reported], tmp_path: Path) -> None:
    write_run(tmp_path, repeats=500)
    once, twice = gather(reported("").folder), gather(tmp_path)
    assert twice.fates is not None
    assert twice.fates.doubled == 500
    assert twice.delivered_per_s == once.delivered_per_s


def test_what_comes_twice_is_in_no_latency(
    reported: Callable[[str], Reported], tmp_path: Path
) -> None:
    """Repeats come seconds late: a minute, where a killed broker was away for one."""
    write_run(tmp_path, repeats=500)
    once, twice = gather(reported("").folder), gather(tmp_path)
    assert twice.bins("delivery") == once.bins("delivery")
    rows = pq.read_table(tmp_path / "parts" / "consumer-0.parquet").to_pylist()
    first: dict[tuple[int, int], dict[str, int]] = {}
    for row in rows:
        first.setdefault((row["publisher"], row["sequence"]), row)
    measured = range(WARM_UP_S * S, (WARM_UP_S + MEASURED_S) * S)
    waits = [
        row["received_ns"] - row["intended_ns"]
        for row in first.values()
        if row["intended_ns"] - START_NS in measured
    ]
    found = percentiles(twice.bins("delivery"))
    assert found["samples"] == len(waits)
    assert found["p100"] == pytest.approx(max(waits) / 1e6, rel=0.001)


def test_what_was_under_way_at_a_kill_is_no_part_of_the_time_before(
    reported: Callable[[str], Reported],
) -> None:
    folder = reported("a system that falls behind a kill").folder
    rows = [
        (row["intended_ns"] - START_NS, row["settled_ns"] - START_NS)
        for path in (folder / "parts").glob("publisher-*.parquet")
        for row in pq.read_table(path).to_pylist()
    ]
    kill_ns, over_ns = FROM_S * S, (FROM_S + 3) * S
    before = [end - at for at, end in rows if end < kill_ns and at >= WARM_UP_S * S]
    after = [end - at for at, end in rows if end >= kill_ns and at < over_ns + 5 * S]
    assert max(end - at for at, end in rows if at < kill_ns) > 1.05 * max(before)
    (told,) = (
        line.split()
        for line in (folder / "report.txt").read_text().splitlines()
        if line.strip().startswith("kill") and " s " in line
    )
    numbers = [float(each) for each in told if each.replace(".", "").isdigit()]
    p99_before, longest = sorted(before)[math.ceil(0.99 * len(before)) - 1], max(after)
    assert any(each == pytest.approx(p99_before / 1e6, abs=5) for each in numbers), told
    assert any(each == pytest.approx(longest / 1e9, abs=0.01) for each in numbers), told


def body_of(number: int) -> bytes:
    """Return a body as the loads of bench make them."""
    return stamped(Filler.of(bytes(40)), 1, number, number * S)


def recorded(folder: Path, unknown: range, swapped: range = range(0)) -> None:
    """Record a message a second for a minute; those of some seconds have no answer, and never came.

    swapped: seconds whose messages came with each other's bodies, the first with the last one's.
    """
    anchor = Anchor("here", "c", 0)
    manifest = Manifest(
        run_id="r",
        topics={"orders": ("billing",)},
        brokers=("mb1:5672",),
        start_ns=0,
        end_ns=60 * S,
        anchor=anchor,
        complete=True,
    )
    manifest.save(folder)
    head = json.dumps({"schema": 1, "anchor": anchor.as_json()})
    published, delivered = [head], [head]
    for second in range(60):
        number, at_ns = f"{second:032x}", second * S
        times = {"intended_ns": at_ns, "sent_ns": at_ns, "confirmed_ns": at_ns + 1}
        known: dict[str, object] = {
            "run_id": "r",
            "message_id": number,
            "topic": "orders",
            "broker": "mb1:5672",
        }
        known |= {"size": 40, "body_hash": body_hash(body_of(second))}
        sent = {"publisher": "p1", "sequence": second, "attempts": 1}
        outcome = "unknown" if second in unknown else "confirmed"
        published.append(json.dumps(known | sent | times | {"outcome": outcome}))
        if second not in unknown:
            had: dict[str, object] = {
                "subscription": "billing",
                "consumer": "c1",
                "redelivered": 0,
                "ack": "acked",
            }
            other = swapped[-1 - swapped.index(second)] if second in swapped else second
            came = {"received_ns": at_ns + 2, "body_hash": body_hash(body_of(other))}
            delivered.append(json.dumps(known | had | came))
    (folder / "published-p1.ndjson").write_text("\n".join(published) + "\n")
    (folder / "delivered-c1.ndjson").write_text("\n".join(delivered) + "\n")


@pytest.mark.parametrize(
    ("unknown", "gap"), [(range(10, 40), "30.000 s"), (range(10, 60), "50.000 s, no end")]
)
def test_an_audit_tells_an_outage_and_fails_unless_it_is_allowed(
    tmp_path: Path, unknown: range, gap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path, unknown)
    assert main(["audit", str(tmp_path)]) == 7
    captured = capsys.readouterr()
    told = f"{len(unknown)} published without a confirm"
    assert gap in captured.out
    assert told in captured.out
    assert told in captured.err
    assert main(["audit", str(tmp_path), "--allow", "unconfirmed"]) == 0
    assert f"audit holds: {60 - len(unknown)} confirmed" in capsys.readouterr().out
    assert main(["audit", str(tmp_path), "--allow", "lost"]) == 7
    assert main(["audit", str(tmp_path), "--allow", "nonsense"]) == 2


def test_an_audit_of_a_run_without_a_fault_holds(tmp_path: Path) -> None:
    recorded(tmp_path, range(0))
    assert main(["audit", str(tmp_path)]) == 0


def test_an_audit_notices_messages_that_came_with_the_bodies_of_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path, range(0), swapped=range(10, 30))
    assert main(["audit", str(tmp_path)]) == 7
    assert "20 delivered with another body" in capsys.readouterr().err
