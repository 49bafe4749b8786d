"""Options that several commands have, and settings of a profile."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from messagebus import BusConfig, ConfigError, ConsumerConfig, PublisherConfig
from messagebus.__main__ import cli
from messagebus.commands.exits import Exit
from messagebus.commands.options import Duration, NumberRange, apply_profile, bus_settings, confirm

# Every setting that needs no file beside it, none of them as by default.
BUS = """
broker = "mb.example:5673"
list_urls = ["http://a.example:8000/consumer-list", "http://b.example:8000/consumer-list"]
user = "shop"
password = "a b,c'=\\"{}"
vhost = "/shop"
cluster = "east"
list_cache = "/var/cache/list"
broker_hosts_allowed = ["*.example", "10.0.0.*"]
client_id = "till 4"
heartbeat_s = 0
dial_timeout_s = 0.7
dial_timeout_max_s = 9
"""
PUBLISHER = """
window = 64
backlog_messages_max = 9
backlog_bytes_max = 70000
deadline_s = 4
attempts_max = 3
retry_unknown = false
connection_lifetime_s = 77
confirm_slow_s = 1.234
batch = {"orders" = {count_max = 9, linger_s = 0.002}, "queue:jobs" = {}}
redundant = ["invoices", "queue:jobs"]
redundancy = "preferred"
"""
# Those that go with some of the others only.
MORE = '[consumer]\norder = "key"\ndedup = "redis://u:p%20q@h/3?wait_replicas=1"\n[publisher]\n'
SPOOL = 'spool = {path = "/var/spool/käse 😀", always = true}\n'
CONSUMER = """
handed_out_max = 9
prefetch = 7
refresh_interval_s = 5
consumer_timeout_s = 600
at_most_once = true
slots = 4
slot = 3
cover = 1
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of profiles of somebody whose environment is otherwise empty."""
    monkeypatch.setattr(os, "environ", {"XDG_CONFIG_HOME": str(tmp_path)})
    made = tmp_path / "messagebus"
    made.mkdir()
    return made


def test_commands_read_from_a_profile_what_an_application_reads_from_its_file(home: Path) -> None:
    path = home / "prod.toml"
    path.write_text(f"[bus]{BUS}[publisher]{PUBLISHER}[consumer]{CONSUMER}")
    apply_profile("prod")
    assert bus_settings() == BusConfig.from_file(path) != BusConfig()
    assert PublisherConfig.from_env(os.environ) == PublisherConfig.from_file(path)
    assert ConsumerConfig.from_env(os.environ) == ConsumerConfig.from_file(path)


def test_tables_and_addresses_of_a_profile_are_those_of_its_file(home: Path) -> None:
    path = home / "prod.toml"
    path.write_text(MORE + SPOOL)
    apply_profile("prod")
    found = PublisherConfig.from_env(os.environ)
    assert found == PublisherConfig.from_file(path)
    assert ConsumerConfig.from_env(os.environ) == ConsumerConfig.from_file(path) != ConsumerConfig()
    assert found.spool is not None
    assert found.spool.path == "/var/spool/käse 😀"


def test_a_file_without_tables_is_of_the_bus(home: Path) -> None:
    (home / "prod.toml").write_text(BUS)
    apply_profile("prod")
    assert bus_settings() == BusConfig.from_file(home / "prod.toml")


def test_a_profile_goes_before_the_environment_also_under_another_name(home: Path) -> None:
    (home / "login").write_text("secret\n")
    os.environ |= {
        "MESSAGEBUS_LIST_URL": "http://old.example/consumer-list",
        "MESSAGEBUS_USER": "old",
        "MESSAGEBUS_PASSWORD": "old",
        "MESSAGEBUS_VHOST": "/kept",
    }
    (home / "prod.toml").write_text(
        f'list_urls = ["http://new.example/consumer-list"]\nuser = "new"\npassword_file = "{home}/login"\n'
    )
    apply_profile("prod")
    found = bus_settings()
    assert found.list_urls == ("http://new.example/consumer-list",)
    assert (found.user, found.current_password().reveal()) == ("new", "secret")
    assert found.vhost == "/kept"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("brokr = 'x'", "unknown setting 'brokr'; did you mean 'broker'?"),
        ("heartbeat_s = '5'\n[publisher]\nwindow = 0", "window 0"),
        ("[bus]\npassword = 5", "password: str wanted, not int"),
        ("broker = ", "prod.toml: "),
    ],
)
def test_faults_of_a_profile_are_one_line(home: Path, text: str, told: str) -> None:
    (home / "prod.toml").write_text(text)
    done = CliRunner().invoke(cli, ["--profile", "prod", "brokers"])
    assert isinstance(done.exception, SystemExit)
    assert done.exit_code == Exit.USAGE
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["../prod", "a/b", "", "a b"])
def test_a_profile_is_a_name_and_no_path(home: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="letters, digits, dots and dashes"):
        apply_profile(name)


def test_a_profile_that_is_not_there_is_named(home: Path) -> None:
    with pytest.raises((ConfigError, OSError), match=r"prod\.toml"):
        apply_profile("prod")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7_200), ("7d", 604_800)]
)
def test_a_duration_has_a_unit(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "h", "-1s", "5x", "1e3", "1 h", "inf"])
def test_what_is_no_duration_is_said_with_examples(text: str) -> None:
    with pytest.raises(click.BadParameter, match="such as 90s, 15m, 2h or 7d"):
        Duration().convert(text, None, None)


def test_a_duration_that_no_clock_has_is_refused_with_the_longest() -> None:
    for text in ("9" * 30, "9" * 400, "36501d"):
        with pytest.raises(click.BadParameter, match="at most 36500d"):
            Duration().convert(text, None, None)
    assert timedelta(seconds=Duration().convert("36500d", None, None)).days == 36_500


@pytest.mark.parametrize("text", ["nan", "-nan", "inf", "1e300"])
def test_nan_and_what_nobody_waits_for_is_within_no_limits(text: str) -> None:
    with pytest.raises(click.BadParameter, match="a number below 1,000,000,000 wanted"):
        NumberRange(min=0).convert(text, None, None)
    assert NumberRange(min=0).convert("1.5", None, None) == 1.5


def test_nobody_is_asked_where_nobody_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    confirm("Delete it?", yes=True)
    with pytest.raises(click.UsageError, match="--yes"):
        confirm("Delete it?", yes=False)


@pytest.mark.parametrize("answer", [True, False])
def test_an_operator_decides(monkeypatch: pytest.MonkeyPatch, answer: bool) -> None:
    asked: list[str] = []

    def ask(question: str, **_: object) -> bool:
        asked.append(question)
        return answer

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(click, "confirm", ask)
    if answer:
        confirm(lambda: "Delete 3?", yes=False)
    else:
        with pytest.raises(click.ClickException, match="nothing was done"):
            confirm("Delete 3?", yes=False)
    assert asked == ["Delete 3?"]
