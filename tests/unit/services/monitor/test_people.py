"""People of the monitor: passwords, sessions, tries; and its settings file."""

from __future__ import annotations

import copy
import functools
import ipaddress
import math
import operator
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from messagebus import BusConfig, ConfigError, Secret
from messagebus.services.monitor.config import MonitorConfig
from messagebus.services.monitor.people import (
    SESSIONS_MAX,
    Logins,
    Person,
    Proxy,
    Role,
    hash_password,
    is_password,
)

KEPT = hash_password("correct horse")
BUS = '[bus]\nlist_urls = ["http://127.0.0.1:8080/list"]\n'


class Clock:
    now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    "text", ["correct horse ", "Correct horse", "", "\0", "\ud800", "x" * 9_999]
)
def test_only_the_password_is_the_password(text: str) -> None:
    assert is_password("correct horse", Secret(KEPT))
    assert not is_password(text, Secret(KEPT))


def test_one_password_is_kept_differently_each_time() -> None:
    assert hash_password("x") != hash_password("x")


def test_sessions_are_bounded_and_end_when_the_role_changes() -> None:
    people = (Person("a", Secret(KEPT), Role.ADMIN),)
    logins = Logins(people, clock=Clock())
    first = logins.begin("a")
    last = [logins.begin("a") for _ in range(SESSIONS_MAX)][-1]
    assert logins.by_session(first) is None
    found = logins.by_session(last)
    assert found is not None
    assert found.role is Role.ADMIN
    assert found.form_token not in repr(found)
    logins.change(people, (), None)
    assert logins.by_session(last) is not None
    logins.change((Person("a", Secret(KEPT), Role.VIEWER),), (), None)
    assert logins.by_session(last) is None


def test_a_session_ends_with_its_person_alone() -> None:
    one, two = (Person(name, Secret(KEPT), Role.ADMIN) for name in ("one", "two"))
    logins = Logins((one, two), clock=Clock())
    sessions = [logins.begin(each) for each in ("one", "two")]
    logins.change((two,), (), None)
    assert [logins.by_session(each) is not None for each in sessions] == [False, True]
    assert logins.begin("one") == ""


def test_addresses_before_the_proxy_are_told_apart_and_nobody_else_says_where_it_is() -> None:
    proxy = Proxy("", (ipaddress.ip_network("10.0.0.0/24"),), {}, None)
    assert proxy.client_of("10.0.0.5", ["192.0.2.9, 192.0.2.1"]) == "192.0.2.1"
    assert proxy.client_of("10.0.0.5", ["192.0.2.9, 192.0.2.1", "10.0.0.6"]) == "192.0.2.1"
    assert proxy.client_of("192.0.2.7", ["192.0.2.1"]) == "192.0.2.7"
    assert proxy.client_of("10.0.0.5", []) == "10.0.0.5"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "monitor.toml"
    path.write_text(text)
    return path


def test_a_whole_file_is_read_with_paths_beside_it(tmp_path: Path) -> None:
    text = f"""
listen = "0.0.0.0:8085"
state_dir = "state"
{BUS}
[balancers]
stats = ["http://lb1:8404"]
[journal]
folder = "journal"
[actions]
token_file = "token"
[[people]]
name = "m.keller"
password = "{KEPT}"
role = "operator"
[proxy]
header = "X-Forwarded-User"
from = ["10.0.0.5/32"]
roles = {{ "a.lund" = "admin" }}
others = "viewer"
[[tokens]]
name = "ci"
sha256 = "{"0a" * 32}"
role = "viewer"
"""
    config = MonitorConfig.from_file(written(tmp_path, text))
    assert config.state_dir == str(tmp_path / "state")
    assert config.token_file == str(tmp_path / "token")
    assert config.token is None
    (tmp_path / "token").write_text("operators\n")
    assert config.token == Secret("operators")
    assert config.people[0].role is Role.OPERATOR
    assert KEPT not in repr(config)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('listn = "x"\n' + BUS, "did you mean 'listen'"),
        ('listen = "0.0.0.0:8085"\n' + BUS, "beyond loopback somebody must be named"),
        (BUS + '[[people]]\nname = "a"\npassword = "plain"\nrole = "admin"\n', "--hash-password"),
        (BUS + f'[[people]]\nname = "a"\npassword = "{KEPT}"\nrole = "root"\n', "role 'root'"),
        (BUS + '[[tokens]]\nname = "a"\nrole = "viewer"\n', "tokens 1: sha256: must be given"),
        (
            BUS + '[proxy]\nheader = "x"\nfrom = ["10.0.0.5/8"]\n',
            "proxy: 10.0.0.5/8 has host bits set",
        ),
        (BUS + "balancers = 4\n", "unknown setting"),
        (BUS + '[balancers]\nstats = ["lb1"]\n', "http:// or https:// address wanted"),
        (BUS + '[actions]\ntoken_file = "token"\n', "who does what must be known and kept"),
        ("[bus]\nuser = 4\n", "bus: user"),
        ("listen = ", "Invalid value"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError) as fault:
        MonitorConfig.from_file(written(tmp_path, text))
    assert told in str(fault.value)
    assert "\n" not in str(fault.value)


WHOLE: dict[str, Any] = {
    "listen": "127.0.0.1:8085",
    "state_dir": "state",
    "manual": "https://manual.example/",
    "bus": {"list_urls": ["http://127.0.0.1:8080/list"]},
    "balancers": {"stats": ["http://lb1:8404"]},
    "journal": {"folder": "journal"},
    "actions": {"token_file": "token"},
    "people": [{"name": "a", "password": KEPT, "role": "admin"}],
    "tokens": [{"name": "ci", "sha256": "0a" * 32, "role": "viewer"}],
    "proxy": {"header": "X-User", "from": ["10.0.0.5/32"], "roles": {"b": "admin"}, "others": ""},
}
WRONG: list[Any] = [5, -1, 1.5, math.nan, True, "x", "\0", [], [1], [[]], [{}], {}, {"x": 1}]


def places(values: Any, begin: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value in a file's tables and lists."""
    for key in values if isinstance(values, dict) else range(len(values)):
        yield (*begin, key)
        if isinstance(values[key], dict | list):
            yield from places(values[key], (*begin, key))


def test_a_whole_file_as_it_should_be_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tomllib, "loads", lambda _text: WHOLE)
    config = MonitorConfig.from_file(written(tmp_path, ""))
    assert (config.proxy is None, len(config.people), len(config.tokens)) == (False, 1, 1)


@pytest.mark.parametrize("place", list(places(WHOLE)), ids=lambda place: ".".join(map(str, place)))
def test_any_value_anywhere_is_taken_or_refused_in_one_line_that_names_it(
    place: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, "")
    for value in WRONG:
        values = copy.deepcopy(WHOLE)
        holder = functools.reduce(operator.getitem, place[:-1], values)
        holder[place[-1]] = value
        monkeypatch.setattr(tomllib, "loads", lambda _text, values=values: values)
        try:
            MonitorConfig.from_file(path)
        except ConfigError as fault:
            told = str(fault).removeprefix(f"{path}: ")
            assert "\n" not in told, value
            assert place[0] in told or told.startswith("list_urls "), value
            assert not {"unhashable", "object", "argument"} & set(told.split()), (value, told)


def test_without_a_list_there_is_nobody_to_ask() -> None:
    with pytest.raises(ConfigError, match="MESSAGEBUS_LIST_URL"):
        MonitorConfig(bus=BusConfig())
