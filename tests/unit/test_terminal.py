"""Text from elsewhere on a terminal, and that nothing prints past it."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus import Delivery, Message, Queue, Receipt
from messagebus.commands.flow import _as_json, _as_line, _as_shown
from messagebus.envelope import read_envelope
from messagebus.terminal import (
    ERASE,
    Progress,
    StatusLine,
    did_you_mean,
    escaped,
    plural,
    printable,
    say,
)

ROOT = Path(__file__).resolve().parents[2]
# bench and spark are left out: they print only their own names and figures.
KITS = (
    "messagebus",
    "inventory",
    "lb",
    "consumer_lists",
    "ops",
)
PRINTS = {"echo", "print", "add_row"}
WRITES = {f"sys.{stream}.{name}" for stream in ("stdout", "stderr") for name in ("buffer", "write")}
# Functions that make text fit to be printed. json writes ASCII.
MAKES_FIT = {"printable", "escaped", "plural", "json.dumps", "len"}
# File -> what it prints all the same, as it is in the source, and why that is well.
ALLOWED = {
    # Each of their lines is escaped where it is made.
    "messagebus/commands/outbox.py": {"f'{statement};'"},
    "messagebus/tools/outbox.py": {"'\\n'.join(_lines(row)) + '\\n'"},
    "messagebus/tools/spool.py": {"_json_line(each) if as_json else _line(each)"},
    "messagebus/tools/parked.py": {"'\\n'.join(_lines(each)) + '\\n'"},
    "messagebus/worker/process.py": {"f'messagebus: {text}'"},
    "messagebus/terminal.py": {"text"},  # made fit by the class around it
    # The output of `consume` is made fit for its stream: see below.
    "messagebus/commands/flow.py": {"sys.stdout.buffer"},
    "messagebus/tools/replay.py": {"sys.stdout.buffer"},  # escaped, line by line
    "messagebus/tools/top.py": {"CLEAR"},  # of ours, on a terminal
    "messagebus/__main__.py": {
        "page.hash_password(click.prompt('Password', hide_input=True, err=True))"
    },
    "ops/vendor.py": {"f\"{package['name']} {package['version']} ({package['licence']})\""},
    "messagebus/tools/tail.py": {"sys.stdout.buffer"},  # escaped, line by line
    "messagebus/tools/dedup.py": {"f'{statement};'"},  # of ours
    "messagebus/commands/explain.py": {"f'{name}\\n\\n{text}'"},  # our page of errors
    # Texts of many lines that were read and rendered here: lists, configuration, units, settings.
    "consumer_lists/__main__.py": {"ours.render()", "table"},
    "lb/__main__.py": {"text", "line", "view.server_table(shown, console.width)"},
    "ops/provision/units.py": {"f'# ---- {path}\\n{text}'", "there"},
    "ops/local/cli.py": {"f'export {key}={shlex.quote(value)}'", "table"},
    # Figures and our own words.
    "lb/view.py": {"*(row[title] for title in titles)"},
    "consumer_lists/show.py": {
        "str(node.generation) if node.served else '-'",
        "str(len(node.served.listed)) if node.served else '-'",
        "str(len(group))",
        "Text(f'{applied} (behind)' if late else str(applied), style='red' if late else 'green')",
    },
    "lb/keeper.py": {"f'not saved: {fault}'", "f'not read: {fault}'"},
    "ops/dist.py": {"path"},
    "ops/locked.py": {"sys.stdout.write"},  # for pip
}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü 漢", "plain ü 漢"),
        ("a\x1b[2Jb\r\n", "a\\x1b[2Jb\\r\\n"),
        ("\x9b2J", "\\x9b2J"),
        ("\u202eevil\\", "\\u202eevil\\\\"),
        ("\ud800", "\\ud800"),
        ("x" * 40, "x" * 30 + "..."),
    ],
)
def test_what_is_shown_moves_no_cursor_and_is_bounded(text: str, shown: str) -> None:
    assert escaped(text, 30) == shown


@given(st.text())
def test_whatever_is_shown_prints_on_one_line(text: str) -> None:
    assert escaped(text, 100).isprintable()
    assert printable(text).isprintable()


@given(st.text())
def test_what_is_fit_stays_as_it_is(text: str) -> None:
    assert printable(printable(text)) == printable(text)


def test_what_is_said_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    say("x\x1b]0;title\x07\nforged")
    say("y\x9b", err=True)
    assert tuple(capsys.readouterr()) == ("x\\x1b]0;title\\x07\\nforged\n", "y\\x9b\n")


@pytest.mark.parametrize(
    ("body", "shown", "piped"),
    [
        (b"plain \xc3\xbc", b"plain \xc3\xbc", b"plain \xc3\xbc"),
        (b"a\x1b[2J\r\nb", rb"a\x1b[2J\r\nb", b"a\x1b[2J\\r\\nb"),
        (b"\xc2\x9b2J\x9b\xff", rb"\x9b2J\x9b\xff", b"\xc2\x9b2J\x9b\xff"),
    ],
)
def test_a_consumed_message_moves_no_cursor_and_reaches_a_pipe_as_it_is(
    body: bytes, shown: bytes, piped: bytes
) -> None:
    delivery = _delivery(Message(body=body))
    assert (_as_shown(delivery), _as_line(delivery)) == (shown, piped)


@given(st.text(), st.text())
def test_a_consumed_message_as_json_prints_on_one_line_and_loses_nothing(
    body: str, header: str
) -> None:
    message = Message(body=body.encode(errors="surrogatepass"), headers={"h": header})
    line = _as_json(_delivery(message)).decode()
    told = json.loads(line)
    assert line.isprintable()
    assert told["headers"] == {"h": header}
    assert read_envelope(line.encode()).message == message


def _delivery(message: Message) -> Delivery:
    return Delivery(message, Receipt("mb1:5672", 1, 1), Queue("jobs"))


def test_nothing_is_printed_that_was_not_made_fit_for_a_terminal() -> None:
    found = {file: set(_printed(ROOT / file)) for file in _files()}
    assert {file: texts for file, texts in found.items() if texts - ALLOWED.get(file, set())} == {}
    assert {file for file, texts in ALLOWED.items() if texts - found[file]} == set(), "not needed"


@pytest.mark.parametrize(
    "source",
    [
        "click.echo(name)",
        "click.echo(f'{name} is there')",
        "console.print(name)",
        "table.add_row('x', name)",
        "console.print(Text(name))",
        "shown.update(f'{name}')",
        "carry_out(plan, say=console.print)",
        "sys.stdout.write(name)",
        "out = sys.stdout.buffer",
    ],
)
def test_a_print_of_foreign_text_is_found(source: str, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(source)
    assert list(_printed(tmp_path / "a.py"))


def _files() -> list[str]:
    return [str(p.relative_to(ROOT)) for kit in KITS for p in sorted((ROOT / kit).rglob("*.py"))]


def _printed(path: Path) -> Iterator[str]:
    """Yield texts that are printed as they are, or handed on to be."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in WRITES:
            yield ast.unparse(node)
        if not isinstance(node, ast.Call):
            continue
        yield from (
            ast.unparse(each.value)
            for each in node.keywords
            if ast.unparse(each.value) in ("console.print", "click.echo", "shown.update")
        )
        if _prints(node.func):
            yield from (ast.unparse(each) for each in node.args if not _is_fit(each))


def _prints(called: ast.expr) -> bool:
    if isinstance(called, ast.Name):
        return called.id == "print"
    if not isinstance(called, ast.Attribute):
        return False
    return called.attr in PRINTS or ast.unparse(called) in ("shown.update", "console.status")


def _is_fit(text: ast.expr) -> bool:
    match text:
        case ast.Constant():
            return True
        case ast.IfExp(_, yes, no):
            return _is_fit(yes) and _is_fit(no)
        case ast.JoinedStr(values):
            return all(_is_fit(each) for each in values)
        case ast.FormattedValue(value, _, form):
            is_figure = form is not None and ast.unparse(form).strip("f'").endswith((",", "f"))
            return is_figure or _is_fit(value)
        case ast.Starred(ast.GeneratorExp(made)):
            return _is_fit(made)
        case ast.Starred(ast.IfExp(_, ast.List([made]))):
            return _is_fit(made)
        case ast.Call(ast.Name("Text"), [made, *_]):
            return _is_fit(made)
        case ast.Call(called):
            return ast.unparse(called) in MAKES_FIT
    return False


@pytest.mark.parametrize(
    ("count", "what", "said"),
    [
        (0, "broker", "0 brokers"),
        (1, "delivery", "1 delivery"),
        (2, "entry", "2 entries"),
        (1_000, "publish", "1,000 publishes"),
        (3, "byte", "3 bytes"),
    ],
)
def test_a_count_goes_with_its_noun(count: int, what: str, said: str) -> None:
    assert plural(count, what) == said


# Counts that the code fixes at two or more.
NEVER_ONE = re.compile(r"_MAX|BROKERS|CLIENTS|CONSUMERS|TIMES|EVENTS|_BYTES")
COUNTED = re.compile(
    r"(?<! of )(?<! of all )\{(?P<what>[^{}]*)\} "
    r"(?:brokers|messages|deliveries|publishes|connections|queues|samples|publishers|sessions|differences)\b(?!=)"
)


def test_what_is_printed_to_operators_counts_by_the_one_helper() -> None:
    """One message, not 1 messages."""
    by_hand = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for kit in ("inventory", "lb", "consumer_lists", "ops", "spark")
        for path in sorted((ROOT / kit).rglob("*.py"))
        for found in COUNTED.finditer(path.read_text())
        if "plural(" not in found["what"] and not NEVER_ONE.search(found["what"])
    ]
    assert by_hand == []


@pytest.mark.parametrize(("word", "said"), [("mb3", "; did you mean 'mb1'?"), ("zzzzzz", "")])
def test_a_name_far_from_all_gets_no_hint(word: str, said: str) -> None:
    assert did_you_mean(word, ["mb1", "other"]) == said


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def lines_of_progress(progress: Progress, clock: Clock, per_s: int, seconds: int) -> None:
    """Do `per_s` things a second, as a loop would tell it."""
    for tick in range(4 * seconds + 1):
        clock.now_s = 100.0 + tick / 4
        progress.at(tick * per_s // 4, "orders/billing on mb1:5672")


def be_a_terminal(monkeypatch: pytest.MonkeyPatch, term: str = "xterm-256color") -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", "80")


def test_elsewhere_than_on_a_terminal_progress_is_a_plain_line_now_and_then(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    with Progress("redriven", total=50_000, clock=clock) as progress:
        lines_of_progress(progress, clock, 1_000, 26)
    where = ": orders/billing on mb1:5672"
    assert capsys.readouterr().err.splitlines() == [
        f"redriven 5,000 of 50,000 messages, 1,000/s, 45 s left{where}",
        f"redriven 15,000 of 50,000 messages, 1,000/s, 35 s left{where}",
        f"redriven 25,000 of 50,000 messages, 1,000/s, 25 s left{where}",
    ]


def test_on_a_terminal_progress_is_one_line_that_fits_and_is_erased(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    be_a_terminal(monkeypatch)
    clock = Clock()
    with Progress("redriven", total=50_000, clock=clock) as progress:
        lines_of_progress(progress, clock, 1_000, 26)
    told = capsys.readouterr().err
    assert "\n" not in told
    assert told.endswith(ERASE)
    shown = told.split(ERASE)
    assert shown[0] == "", "nothing before the first is erased"
    assert shown[1].startswith("redriven 5,000 of 50,000 messages, 1,000/s, 45 s left: orders/")
    assert len(shown) == 1 + 85 + 1, "a picture for each tick since 5 s, and the end"
    assert {len(each) for each in shown[1:-1]} == {79}, "one column stays free"


def test_work_that_ends_soon_shows_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    be_a_terminal(monkeypatch)
    clock = Clock()
    with Progress("redriven", clock=clock) as progress:
        lines_of_progress(progress, clock, 1_000, 4)
    assert capsys.readouterr().err == ""


def test_a_rate_and_a_time_left_follow_the_last_seconds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    progress = Progress("moved", total=10_000, clock=clock)
    lines_of_progress(progress, clock, 100, 20)
    for second in range(1, 31):
        clock.now_s += 1
        progress.at(2_000 + second)
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.match(r"moved 2,0\d\d of 10,000 messages, 1\.0/s, 2 h 1\d min left$", last), last


def test_what_has_no_total_has_a_share_or_only_a_rate(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    known, unknown = Progress("published", clock=clock), Progress("wrote", "file", clock=clock)
    for second in range(1, 7):
        clock.now_s = 100.0 + second
        known.at(30 * second, share=0.1 * second)
        unknown.at(1)
    assert capsys.readouterr().err.splitlines()[:2] == [
        "published 150 messages, 50%, 30/s, 5.0 s left",
        "wrote 1 file, 12.0/min",
    ]


def test_work_that_stands_still_has_no_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    progress = Progress("moved", total=10, clock=clock)
    for second in range(30):
        clock.now_s = 100.0 + second
        progress.at(1)
    assert capsys.readouterr().err.splitlines()[-1] == "moved 1 of 10 messages, 0.0/s"


def test_a_status_is_erased_before_another_line_and_comes_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    be_a_terminal(monkeypatch)
    clock = Clock()
    line = StatusLine(after_s=0, clock=clock)
    line.show("waits for\x1b[2J mb1")
    line.clear()
    say("done", err=True)
    line.show("waits for mb2")
    shown = f"{ERASE}waits for\\x1b[2J mb1{ERASE}done\n{ERASE}waits for mb2"
    assert capsys.readouterr().err == shown


def test_a_dumb_terminal_gets_no_escapes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    be_a_terminal(monkeypatch, "dumb")
    clock = Clock()
    line = StatusLine(after_s=0, clock=clock)
    line.show("at once")
    clock.now_s += 5
    line.show("later")
    line.clear()
    assert capsys.readouterr().err == "later\n"
