"""Small runs with one planted fault each: every page, number and exit code of bench notices it."""

from __future__ import annotations

import contextlib
import functools
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from bench.cli import main
from bench.run.charts import latency_chart
from bench.run.result import gather
from tests.support.runs import MEASURED_S, WARM_UP_S, write_run

Write = Callable[[Path], None]
FROM_S, KILLED = WARM_UP_S + 2, {"at_s": WARM_UP_S + 2, "what": "kill", "broker": 1, "lasts_s": 3}
# For three seconds nobody is answered; to the end of the load.
OUTAGE, WITHOUT_END = range(FROM_S, FROM_S + 3), range(FROM_S, WARM_UP_S + MEASURED_S)

PLANTED: dict[str, tuple[Write, str]] = {
    "an outage": (partial(write_run, outage=OUTAGE), "600 publishes did not end confirmed"),
    "a kill that nothing survives": (
        partial(write_run, outage=WITHOUT_END, disturbances=[KILLED]),
        "1,200 publishes did not end confirmed",
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
    """Of each planted fault, and of a run without one, the report; each is made once."""
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
    assert found.code == 1
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
    """In one run of two; the profile is the same but for what was done to brokers."""
    whole = reported("").folder
    for arm, first in (("a", whole), ("b", reported(name).folder)):
        for number, run in ((1, first), (2, whole)):
            (tmp_path / arm / str(number)).mkdir(parents=True)
            values = json.loads((run / "result.json").read_text())
            values["profile"] = json.loads((whole / "result.json").read_text())["profile"]
            (tmp_path / arm / str(number) / "result.json").write_text(json.dumps(values))
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "a")]) == 0
    capsys.readouterr()
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
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
    (disturbance,) = (line.split() for line in text if line.strip().startswith("kill"))
    assert disturbance[-3] == f"{len(outage) * 200:,}"
    assert float(disturbance[-2]) == pytest.approx(silence_s, abs=0.05)


def test_no_line_is_drawn_through_an_outage(reported: Callable[[str], Reported]) -> None:
    broken, whole = (
        latency_chart(gather(reported(name).folder)).count("<polyline")
        for name in ("an outage", "")
    )
    # Four lines: two measures, two percentiles.
    assert (broken, whole) == (8, 4)


def test_what_comes_twice_is_no_rate(reported: Callable[[str], Reported], tmp_path: Path) -> None:
    write_run(tmp_path, repeats=500)
    once, twice = gather(reported("").folder), gather(tmp_path)
    assert twice.fates is not None
    assert twice.fates.doubled == 500
    assert twice.delivered_per_s == once.delivered_per_s
