"""The command of the kit, and how it judges: without brokers."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from clients.conform import cli
from clients.conform import run as running
from clients.conform.cases import MUST, SHOULD, Case, NotRun
from clients.conform.program import Wrong
from clients.conform.run import FAILED, NOT_RUN, PASSED, Result, run_all
from clients.conform.stage import Bus
from messagebus.commands.exits import Exit, run

CLIENT = ("--", sys.executable)
GIVEN = ("--brokers", "b1:1,b2:2,b3:3", "--agents", "a1:1,a2:2,a3:3")


def bus(folder: Path, *, agents: Sequence[str] = (), patience: float = 1.0) -> Bus:
    return Bus(
        brokers=[],
        agents=[*agents],
        cluster="",
        user="u",
        password="p",
        folder=folder,
        begin="cf",
        patience=patience,
    )


def result(number: int, ended: str, level: str = MUST) -> Result:
    return Result(
        number=number, name=f"case {number}", level=level, result=ended, seconds=1.25, detail="why"
    )


class Judge:
    """Judge of clients that has these results. asked: the bus and the cases of each run."""

    def __init__(self) -> None:
        self.results: list[Result] = []
        self.requests: list[tuple[Bus, object]] = []

    def __call__(self, bus: Bus, _command: object, *, only: object, on_result: Any) -> list[Result]:
        self.requests.append((bus, only))
        for each in self.results:
            on_result(each)
        return self.results


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Judge]:
    judge = Judge()

    @contextmanager
    def local(folder: Path, *, patience: float) -> Iterator[Any]:
        yield bus(folder, patience=patience)

    monkeypatch.setattr(cli, "run_all", judge)
    monkeypatch.setattr(cli, "local_bus", local)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = signal.getsignal(signal.SIGTERM)
    yield judge
    signal.signal(signal.SIGTERM, before)


def conform(*words: str) -> int:
    return run(cli.conform, list(words), prog_name="python -m clients.conform")


@pytest.mark.parametrize(
    ("results", "code"),
    [
        ([result(1, PASSED), result(2, NOT_RUN)], Exit.DONE),
        ([result(1, PASSED), result(2, FAILED)], Exit.FOUND),
        ([result(1, FAILED, SHOULD)], Exit.DONE),
    ],
)
def test_a_client_that_fails_what_it_must_do_has_exit_code_7(
    results: list[Result], code: Exit, judge: Judge, capsys: pytest.CaptureFixture[str]
) -> None:
    judge.results += results
    assert conform("--case", "2", *CLIENT) == code
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == [str(r.number) for r in results]
    assert err == f"{sum(r.result == PASSED for r in results)} of {len(results)} passed\n"
    assert judge.requests[0][1] == (2,)


def test_one_json_object_a_case(judge: Judge, capsys: pytest.CaptureFixture[str]) -> None:
    judge.results += [result(1, PASSED), result(2, FAILED)]
    conform("--json", *CLIENT)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["number"], row["result"], row["detail"]) for row in rows] == [
        (1, PASSED, "why"),
        (2, FAILED, "why"),
    ]


def test_what_clients_wrote_is_kept_only_when_asked(
    judge: Judge, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conform(*CLIENT)
    assert list(tmp_path.iterdir()) == []
    conform("--keep", *CLIENT)
    (kept,) = tmp_path.iterdir()
    assert str(kept) in capsys.readouterr().err


def test_a_given_bus_is_asked_with_the_login_of_any_client(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "password").write_text("secret\n")
    monkeypatch.setenv("MESSAGEBUS_USER", "tester")
    monkeypatch.setenv("MESSAGEBUS_PASSWORD_FILE", str(tmp_path / "password"))
    assert conform(*GIVEN, "--cluster", "prod", *CLIENT) == Exit.DONE
    ((given, _),) = judge.requests
    login = (given.user, given.password)
    assert (*login, given.cluster, given.local) == ("tester", "secret", "prod", None)
    assert (given.brokers, given.agents) == (["b1:1", "b2:2", "b3:3"], ["a1:1", "a2:2", "a3:3"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--case", "99", *CLIENT), "--case 99: 1 to 22"),
        (("--", "/no/such/client"), "/no/such/client: no program that can be run"),
        (("--brokers", "a,b", "--agents", "a,b", *CLIENT), "3 or more of each"),
        (("--brokers", "a,b,c", *CLIENT), "3 or more of each"),
        (("--brokers", "a,b,[::1", "--agents", "a,b,c", *CLIENT), "--brokers: not a host name"),
        (("--brokers", "a,b,c", "--agents", "a,b,c:d", *CLIENT), "--agents: not a port"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_started(
    words: tuple[str, ...], told: str, judge: Judge, capsys: pytest.CaptureFixture[str]
) -> None:
    assert conform(*words) == Exit.USAGE
    err = capsys.readouterr().err
    assert told in err
    assert err.count("\n") == 1
    assert judge.requests == []


def test_addresses_have_a_port_each(judge: Judge) -> None:
    given = ("--brokers", "b1,[::1],b3:3", "--agents", "b1,[::1]:2,b3")
    assert conform(*given, *CLIENT) == Exit.DONE
    ((bus_asked, _),) = judge.requests
    assert bus_asked.brokers == ["b1:5672", "[::1]:5672", "b3:3"]
    assert bus_asked.agents == ["b1:8081", "[::1]:2", "b3:8081"]


def test_without_the_operators_kit_it_says_what_it_needs(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "local_bus", running.local_bus)
    monkeypatch.setitem(sys.modules, "ops.local.cluster", None)
    assert conform(*CLIENT) == Exit.USAGE
    assert "no kit here that starts brokers (ops.local.cluster): --brokers" in (
        capsys.readouterr().err
    )


def test_sigterm_ends_what_was_started(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ended = []

    @contextmanager
    def local(folder: Path, *, patience: float) -> Iterator[Any]:
        try:
            signal.raise_signal(signal.SIGTERM)
            yield None
        finally:
            ended.append(folder)

    monkeypatch.setattr(cli, "local_bus", local)
    with pytest.raises(SystemExit) as exited:
        conform(*CLIENT)
    assert exited.value.code == Exit.TERMINATED
    assert len(ended) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_agent_that_is_away_or_refuses_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = bus(tmp_path, agents=["127.0.0.1:1"])
    with pytest.raises(OSError, match=r"agent 127\.0\.0\.1:1: .*refused"):
        asked.register(["topic"])
    answers = [(503, "later"), (200, '{"complete": false}'), (401, "login refused")]
    monkeypatch.setattr("clients.conform.stage._post", lambda *_: answers.pop(0))
    monkeypatch.setattr("clients.conform.stage.time.sleep", lambda _s: None)
    with pytest.raises(OSError, match=r"agent 127\.0\.0\.1:1: HTTP 401: login refused"):
        asked.register(["topic"])
    answers += [(503, "not yet"), (200, '{"complete": true}')]
    asked.register(["topic"])
    assert answers == []


def case(number: int, run: Any, *, alone: bool = False) -> Case:
    return Case(number=number, level=MUST, promise="", run=run, alone=alone)


def test_cases_end_in_their_order_each_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(fault: Exception) -> Any:
        def raising(_stage: object) -> str:
            raise fault

        return raising

    cases = [
        case(1, fails(AssertionError("never")), alone=True),
        case(2, lambda _stage: "12 ms"),
        case(3, lambda _stage: None),
        case(4, fails(Wrong("lost one"))),
        case(5, fails(NotRun("no second bus"))),
        case(6, fails(KeyError("x"))),
    ]
    given = bus(tmp_path)
    registered: list[str] = []
    told: list[int] = []
    monkeypatch.setattr(running, "CASES", cases)
    monkeypatch.setattr(running, "Stage", lambda *_: nullcontext())
    monkeypatch.setattr(Bus, "register", lambda _self, names: registered.extend(names))
    results = run_all(given, ["client"], on_result=lambda each: told.append(each.number))
    assert [(each.result, each.detail) for each in results] == [
        (NOT_RUN, "needs a local cluster, to break it"),
        (PASSED, "12 ms"),
        (PASSED, ""),
        (FAILED, "lost one"),
        (NOT_RUN, "no second bus"),
        (FAILED, "the kit itself: KeyError: 'x'"),
    ]
    assert sorted(told) == [1, 2, 3, 4, 5, 6]
    assert told[-1] == 1, "cases that break brokers run after the others"
    assert {"cf01", "cf01/s", "cf06", "cf06/s"} <= set(registered)
    given.local = object()
    assert (
        run_all(given, ["client"], only=[1, 3])[0].detail == "the kit itself: AssertionError: never"
    )
