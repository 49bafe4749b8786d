"""messagebus.config: settings, checked whole at the edge."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus import AsyncConsumer, AsyncPublisher, Consumer, Publisher, admin, config, declare
from messagebus.broker import Broker
from messagebus.config import (
    ENV_PREFIX,
    NOT_SETTINGS,
    Batching,
    BusConfig,
    ConsumerConfig,
    PublisherConfig,
    Spool,
)
from messagebus.errors import ConfigError
from messagebus.outbox import AsyncRelay, Relay, RelayConfig
from messagebus.replay import AsyncReplay, Replay, stream_ends
from messagebus.secret import Secret
from messagebus.stores import Dedup
from messagebus.tools.sampler import QueueSampler
from messagebus.tools.trail import Trail

ROOT = Path(__file__).resolve().parents[2]
# Names that end in a word: no beginning that code completes.
VARIABLE = re.compile(r"(?<!\w)MESSAGEBUS_([A-Z_]*[A-Z])\b")
# The other name of list_urls; a setting of Django; and a wrong one, which a test of commands sees refused.
NO_FIELDS = {"list_url", "outbox", "usr"}


def test_two_spellings_of_one_setting_are_not_chosen_from() -> None:
    environ = {"MESSAGEBUS_LIST_URL": "http://a/", "MESSAGEBUS_LIST_URLS": "http://b/"}
    with pytest.raises(ConfigError, match="say one of them"):
        BusConfig.from_env(environ)


def test_an_environment_is_read() -> None:
    bus = BusConfig.from_env(
        {
            "MESSAGEBUS_BROKER": "lb:5672",
            "MESSAGEBUS_LIST_URL": "http://a:1/consumer-list, http://b:2/consumer-list",
            "MESSAGEBUS_USER": "bus",
            "MESSAGEBUS_PASSWORD": "sesame",
            "MESSAGEBUS_HEARTBEAT_S": "7",
            "HOME": "/root",
        }
    )
    assert bus.address == Broker("lb")
    assert bus.list_urls == ("http://a:1/consumer-list", "http://b:2/consumer-list")
    assert (bus.user, bus.heartbeat_s, bus.current_password().reveal()) == ("bus", 7, "sesame")


def test_an_empty_environment_is_the_defaults() -> None:
    assert BusConfig.from_env({}) == BusConfig()


def test_every_variable_that_code_names_is_a_setting_or_known_to_be_none() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.sh", "Makefile"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    # Many variables of unit tests are wrong, to see them refused.
    paths = [ROOT / each for each in listed if not each.startswith("tests/unit/")]
    code = [path.read_text() for path in paths if path.exists()]
    assert len(code) > 500
    kinds = {"": BusConfig, "publisher_": PublisherConfig, "consumer_": ConsumerConfig}
    settings = {
        f"{begin}{field.name}"
        for begin, kind in kinds.items()
        for field in dataclasses.fields(kind)
    }
    known = settings | NOT_SETTINGS | NO_FIELDS
    named = {word.lower() for text in code for word in VARIABLE.findall(text)}
    assert {"dial_timeout_s", "inventory", "list_url"} <= named
    assert named - known == set()


def test_what_operators_and_tests_set_is_no_setting() -> None:
    others = [f"{ENV_PREFIX}{word.upper()}" for word in NOT_SETTINGS]
    assert BusConfig.from_env(dict.fromkeys(others, "x")) == BusConfig()


@pytest.mark.parametrize("text", ["", " "])
def test_a_variable_of_several_words_that_is_empty_is_none(text: str) -> None:
    assert BusConfig.from_env({"MESSAGEBUS_BROKER_HOSTS_ALLOWED": text}).broker_hosts_allowed == ()


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        BusConfig(broker="lb:0", list_urls=("ftp://x",), heartbeat_s=-1)
    told = str(raised.value)
    assert all(key in told for key in ("broker 'lb:0'", "list_urls 'ftp://x'", "heartbeat_s -1"))


@pytest.mark.parametrize(
    "url",
    [
        *("", "x", "ftp://x", "http://", "http://[::1", "http://x:99999/", "http://a..b/"),
        f"https://{'a' * 64}.example/",
    ],
)
def test_a_list_address_is_http(url: str) -> None:
    with pytest.raises(ConfigError, match="list_urls"):
        BusConfig(list_urls=(url,))


def test_a_password_is_in_no_error_and_no_repr() -> None:
    faulty: list[dict[str, Any]] = [
        {"password": ["sesame"]},
        {"password": Secret("sesame"), "heartbeat_s": "x"},
        {"password": "sesame", "heartbeat_s": -1},
        {"broker": "bus:sesame@lb:5672"},
        {"list_urls": ["htp://bus:sesame@lb/consumer-list"]},
    ]
    for values in faulty:
        with pytest.raises(ConfigError) as raised:
            BusConfig.from_mapping(values)
        assert "sesame" not in str(raised.value)
    for values in ({"password": "sesame"}, {"broker": "amqp://bus:sesame@lb"}):
        assert "sesame" not in repr(BusConfig.from_mapping(values))


@pytest.mark.parametrize("raw", [None, b"\xff\xfe"])
def test_a_password_file_that_cannot_be_read_is_told(tmp_path: Path, raw: bytes | None) -> None:
    path = tmp_path / "password"
    if raw is not None:
        path.write_bytes(raw)
    with pytest.raises(ConfigError, match="password_file: ") as raised:
        BusConfig(password_file=str(path)).current_password()
    assert "xff" not in str(raised.value)


@pytest.mark.parametrize("written", ["sesame", "ses/ame", "/no/sesame"])
def test_a_secret_that_was_set_for_its_file_is_not_shown(written: str) -> None:
    makes: list[Callable[[], object]] = [
        lambda: BusConfig(password_file=written),
        lambda: BusConfig.from_mapping({"password_file": written}),
        lambda: BusConfig.from_env({"MESSAGEBUS_PASSWORD_FILE": written}),
    ]
    for make in makes:
        with pytest.raises(ConfigError, match=r"password_file: .*No such file") as raised:
            make()
        assert "ses" not in str(raised.value)


@pytest.mark.parametrize("raw", [b"broker =", b"\xff", b"brokr = 'x'", b"heartbeat_s = true"])
def test_a_bad_file_is_told(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "bus.toml"
    path.write_bytes(raw)
    with pytest.raises(ConfigError):
        BusConfig.from_file(path)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        BusConfig.from_file(tmp_path / "none")


json_values = st.none() | st.booleans() | st.integers() | st.text(max_size=9) | st.lists(st.text())


@pytest.mark.parametrize(
    ("kind", "setting", "good", "bad"),
    [
        (PublisherConfig, "window", (1, 65_535), (0, 65_536, "9", True, 1.0)),
        (PublisherConfig, "backlog_messages_max", (1, 10_000_000), (0, 10_000_001)),
        (PublisherConfig, "deadline_s", (0.001, 86_400), (0, -1)),
        (PublisherConfig, "attempts_max", (1,), (0,)),
        (PublisherConfig, "connection_lifetime_s", (1,), (0,)),
        (PublisherConfig, "confirm_slow_s", (0.001,), (0,)),
        (Batching, "count_max", (1, 10_000), (0, 10_001)),
        (Batching, "bytes_max", (1, 15 * 1024 * 1024), (0, 15 * 1024 * 1024 + 1)),
        (Batching, "linger_s", (0, 60), (-1, 60.001)),
        (ConsumerConfig, "handed_out_max", (1, 1_000_000), (0, 1_000_001)),
        (ConsumerConfig, "prefetch", (1, 2_000), (0, 2_001)),
        (ConsumerConfig, "refresh_interval_s", (1, 3_600), (0, 3_601)),
    ],
)
def test_every_number_has_its_range(
    kind: type[Any], setting: str, good: tuple[Any, ...], bad: tuple[Any, ...]
) -> None:
    for value in good:
        assert getattr(kind(**{setting: value}), setting) == value
    for value in bad:
        with pytest.raises(ConfigError, match=setting):
            kind(**{setting: value})


def test_a_batch_is_known_by_the_one_spelling_of_its_destination() -> None:
    config = PublisherConfig(
        batch={"jms.queue.jobs": Batching(count_max=7), "topic:orders": Batching()}
    )
    assert config.batch == {"queue:jobs": Batching(count_max=7), "orders": Batching()}
    assert hash(config) == hash(PublisherConfig())


def test_a_batch_that_would_linger_beyond_the_deadline_is_told() -> None:
    PublisherConfig(deadline_s=0.05, batch={"orders": Batching(linger_s=0.049)})
    with pytest.raises(ConfigError, match=r"'orders': linger_s 0\.05: below deadline_s 0\.05"):
        PublisherConfig(deadline_s=0.05, batch={"orders": Batching(linger_s=0.05)})


def test_a_batch_of_no_destination_or_of_another_type_is_told() -> None:
    wrong: Any = {"not a name": Batching(), "queue:jobs": 50}
    with pytest.raises(ConfigError, match=r"'not a name'.*'queue:jobs': Batching wanted, not int"):
        PublisherConfig(batch=wrong)


# Sources.
def test_every_config_has_variables_of_its_own() -> None:
    environ = {
        "MESSAGEBUS_USER": "bus",
        "MESSAGEBUS_PUBLISHER_WINDOW": "7",
        "MESSAGEBUS_PUBLISHER_RETRY_UNKNOWN": "no",
        "MESSAGEBUS_PUBLISHER_BATCH": '{orders = {count_max = 3}, "queue:jobs" = {}}',
        "MESSAGEBUS_CONSUMER_PREFETCH": "9",
        "MESSAGEBUS_CONSUMER_AT_MOST_ONCE": "True",
        "MESSAGEBUS_HOT_PATH": "0",
    }
    assert BusConfig.from_env(environ) == BusConfig(user="bus")
    assert PublisherConfig.from_env(environ) == PublisherConfig(
        window=7,
        retry_unknown=False,
        batch={"orders": Batching(count_max=3), "queue:jobs": Batching()},
    )
    assert ConsumerConfig.from_env(environ) == ConsumerConfig(prefetch=9, at_most_once=True)


@pytest.mark.parametrize(
    ("kind", "variable", "told"),
    [
        (PublisherConfig, "PUBLISHER_WINDW", "did you mean 'MESSAGEBUS_PUBLISHER_WINDOW'"),
        (ConsumerConfig, "CONSUMER_PREFETHC", "did you mean 'MESSAGEBUS_CONSUMER_PREFETCH'"),
        (BusConfig, "PUBLISHR_WINDOW", "unknown setting 'MESSAGEBUS_PUBLISHR_WINDOW'"),
        (BusConfig, "TLS_CAFILE", "did you mean 'MESSAGEBUS_TLS_CA_FILE'"),
        (BusConfig, "LIST_URI", "did you mean 'MESSAGEBUS_LIST_URL'"),
    ],
)
def test_an_unknown_variable_is_told_by_whose_it_is(
    kind: type[Any], variable: str, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        kind.from_env({f"MESSAGEBUS_{variable}": "1"})


@pytest.mark.parametrize("kind", [BusConfig, PublisherConfig, ConsumerConfig])
def test_every_fault_of_all_variables_is_told_at_once_by_the_variables_names(
    kind: type[Any],
) -> None:
    environ = {
        "MESSAGEBUS_BROKR": "x",
        "MESSAGEBUS_TLS": "perhaps",
        "MESSAGEBUS_DIAL_TIMEOUT_S": "soon",
        "MESSAGEBUS_PUBLISHER_WINDOW": "wide",
        "MESSAGEBUS_CONSUMER_PREFETCH": "lots",
    }
    with pytest.raises(ConfigError) as told:
        kind.from_env(environ)
    assert str(told.value).split("; ") == [
        "unknown setting 'MESSAGEBUS_BROKR'",
        "did you mean 'MESSAGEBUS_BROKER'?",
        "MESSAGEBUS_TLS: true or false wanted",
        "MESSAGEBUS_DIAL_TIMEOUT_S: a number wanted",
        "MESSAGEBUS_PUBLISHER_WINDOW: a whole number wanted",
        "MESSAGEBUS_CONSUMER_PREFETCH: a whole number wanted",
    ]


@pytest.mark.parametrize("text", ["", "maybe", "2", "[]"])
def test_yes_and_no_have_few_spellings(text: str) -> None:
    with pytest.raises(ConfigError, match="MESSAGEBUS_TLS: true or false wanted"):
        BusConfig.from_env({"MESSAGEBUS_TLS": text})


@pytest.mark.parametrize(
    "text", ["", "{", "50", "[1]", "{orders = 5}", "{orders = {count_mx = 5}}"]
)
def test_a_batch_that_makes_no_sense_is_told(text: str) -> None:
    with pytest.raises(ConfigError, match="MESSAGEBUS_PUBLISHER_BATCH"):
        PublisherConfig.from_env({"MESSAGEBUS_PUBLISHER_BATCH": text})


FILE = """
[bus]
broker = "lb:1"
heartbeat_s = 5
[publisher]
window = 7
[publisher.batch."queue:jobs"]
count_max = 50
linger_s = 0.002
[consumer]
prefetch = 9
at_most_once = true
"""


def test_one_file_holds_all_three(tmp_path: Path) -> None:
    path = tmp_path / "all.toml"
    path.write_text(FILE)
    assert BusConfig.from_file(path) == BusConfig(broker="lb:1", heartbeat_s=5)
    batch = {"queue:jobs": Batching(count_max=50, linger_s=0.002)}
    assert PublisherConfig.from_file(path) == PublisherConfig(window=7, batch=batch)
    assert ConsumerConfig.from_file(path) == ConsumerConfig(prefetch=9, at_most_once=True)


def test_a_table_that_is_missing_is_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "bus.toml"
    path.write_text('[bus]\nbroker = "lb:1"\n')
    assert PublisherConfig.from_file(path) == PublisherConfig()


def test_a_file_of_one_config_needs_no_table(tmp_path: Path) -> None:
    path = tmp_path / "publisher.toml"
    path.write_text("window = 7\n[batch.orders]\ncount_max = 3\n")
    expected = PublisherConfig(window=7, batch={"orders": Batching(count_max=3)})
    assert PublisherConfig.from_file(path) == expected


@pytest.mark.parametrize("kind", [BusConfig, PublisherConfig, ConsumerConfig])
def test_whoever_reads_a_file_is_told_all_its_faults(tmp_path: Path, kind: type[Any]) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(
        'broker = "outside"\nconsumer = 1\n[bus]\nusr = "x"\nheartbeat_s = -1\ntls = "maybe"\n'
        '[publisher]\nwindow = "many"\n[publisher.batch.orders]\ncount_max = 0\ncount = 1\n'
        "[publisher.batch.'not a name']\n[publishr]\n"
    )
    with pytest.raises(ConfigError) as raised:
        kind.from_file(path)
    told = str(raised.value)
    assert "\n" not in told
    for fault in (
        "bad.toml: ",
        "unknown setting 'broker'",
        "unknown setting 'publishr'; did you mean 'publisher'",
        "[consumer]: a table wanted, not int",
        "[bus] unknown setting 'usr'; did you mean 'user'",
        "heartbeat_s -1: 0 to 3,600",
        "tls: true or false wanted",
        "[publisher] window",
        "count_max 0: 1 to 10,000",
        "unknown setting 'count'; did you mean 'count_max'",
    ):
        assert fault in told, fault


@given(values=st.lists(json_values | st.dictionaries(st.text(), json_values), max_size=20))
@pytest.mark.parametrize("kind", [BusConfig, PublisherConfig, ConsumerConfig, Batching])
def test_of_any_values_only_config_error_escapes(kind: type[Any], values: list[Any]) -> None:
    names = sorted(field.name for field in dataclasses.fields(kind))
    keyed = dict(zip(names, values, strict=False))
    with contextlib.suppress(ConfigError):
        if kind is Batching:
            PublisherConfig.from_mapping({"batch": {"orders": keyed}})
        else:
            kind.from_mapping(keyed)


# Logins and certificates.
def test_user_and_password_are_read_again_each_time(tmp_path: Path) -> None:
    user, password = tmp_path / "user", tmp_path / "password"
    user.write_text("blue\n")
    password.write_text("one\n")
    bus = BusConfig(user_file=str(user), password_file=str(password))
    assert (bus.current_user(), bus.current_password()) == ("blue", Secret("one"))
    user.write_text("green")
    assert bus.current_user() == "green"


def test_files_are_looked_at_when_the_config_is_made() -> None:
    with pytest.raises(ConfigError) as raised:
        BusConfig(
            user_file="/no/user", password_file="/no/password", tls=True, tls_ca_file="/no/ca"
        )
    for key in ("user_file: ", "password_file: ", "tls_ca_file /no/ca: No such file"):
        assert key in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"tls_ca_file": "x"}, "tls_ca_file: without effect while tls is off"),
        ({"tls_server_name": "x"}, "tls_server_name: without effect while tls is off"),
        ({"tls": True, "tls_server_name": "no name"}, "a host name wanted"),
        ({"tls": True, "tls_key_file": "/etc/hostname"}, "without a tls_cert_file"),
        ({"tls": True, "list_urls": ("http://a:1/x", "https://b/x")}, "'http://a:1/x': https://"),
    ],
)
def test_settings_of_tls_belong_together(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)) as raised:
        BusConfig(**settings)
    assert "b/x" not in str(raised.value)


def test_with_tls_and_nothing_else_the_systems_authorities_count() -> None:
    assert BusConfig(tls=True, list_urls=("https://b/x",)).tls_files.faults() == []


def test_what_is_no_password_and_one_address_for_several_are_told_once_each() -> None:
    with pytest.raises(ConfigError) as caught:
        BusConfig(password=b"sesame", list_urls="http://u:sesame@x/")  # type: ignore[arg-type]
    told = str(caught.value)
    assert "password: a text wanted, not bytes" in told
    assert told.count("list_urls") == 1
    assert "sesame" not in told


@pytest.mark.parametrize(
    ("kind", "given", "told"),
    [
        # Truthy: it would lose messages.
        (ConsumerConfig, {"at_most_once": "false"}, "at_most_once: True or False wanted, not str"),
        # One of its letters allows any host, so that a stranger's list could collect passwords.
        (BusConfig, {"broker_hosts_allowed": "*.shop"}, "broker_hosts_allowed: several texts"),
        (BusConfig, {"tls": "off"}, "tls: True or False wanted"),
        (BusConfig, {"broker": None, "user": 7}, "broker: a text wanted.*user: a text wanted"),
        (BusConfig, {"list_urls": (None,)}, "list_urls: several texts wanted"),
        (PublisherConfig, {"retry_unknown": None}, "retry_unknown: True or False wanted"),
        (PublisherConfig, {"batch": [1], "window": 0}, "batch: a mapping .*; window 0"),
        (ConsumerConfig, {"slots": "4"}, "slots '4': 0 to 10,000"),
        (Spool, {"path": "/s", "always": "no"}, "always 'no': True or False"),
        (RelayConfig, {"key_waits": "false", "notify": 1}, "key_waits .*False; notify 1: True"),
        (Dedup, {"store": "memory:", "fence": None}, "fence None: True or False"),
    ],
)
def test_what_is_not_of_its_settings_type_is_refused_in_words(
    kind: type[Any], given: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        kind(**given)


def test_lists_and_paths_are_taken_as_they_are_meant(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("sesame")
    config = BusConfig(password_file=file, broker_hosts_allowed=["a"])  # type: ignore[arg-type]
    assert (config.password_file, config.broker_hosts_allowed) == (str(file), ("a",))
    assert hash(config)


@pytest.mark.parametrize("client_id", ["x\x1b[2J", "a\nb", "büro", "x" * 201])
def test_a_client_id_that_does_not_print_is_refused(client_id: str) -> None:
    with pytest.raises(ConfigError, match=r"client_id .*: at most 200 printing ASCII characters"):
        BusConfig(client_id=client_id)
    assert BusConfig(client_id="shop api, host-1:42 [blue]").client_id


def test_redundant_destinations_come_from_everywhere_in_one_spelling() -> None:
    wanted = PublisherConfig(redundant=("orders", "queue:jobs"), redundancy="preferred")
    environ = {
        "MESSAGEBUS_PUBLISHER_REDUNDANT": "orders, queue:jobs",
        "MESSAGEBUS_PUBLISHER_REDUNDANCY": "preferred",
    }
    assert PublisherConfig.from_env(environ) == wanted
    given = {"redundant": ["orders", "queue:jobs"], "redundancy": "preferred"}
    assert PublisherConfig.from_mapping(given) == wanted


@pytest.mark.parametrize("text", ["", " "])
def test_nothing_is_redundant_where_the_variable_is_empty(text: str) -> None:
    assert PublisherConfig.from_env({"MESSAGEBUS_PUBLISHER_REDUNDANT": text}).redundant == ()
    spool = {"MESSAGEBUS_PUBLISHER_SPOOL": "/s", "MESSAGEBUS_PUBLISHER_REDUNDANT": text}
    assert PublisherConfig.from_env(spool).spool == Spool("/s")
    with pytest.raises(ConfigError, match="redundant: "):
        PublisherConfig.from_env({"MESSAGEBUS_PUBLISHER_REDUNDANT": "orders,,jobs"})


def test_every_fault_of_redundancy_is_told_together() -> None:
    with pytest.raises(ConfigError) as raised:
        PublisherConfig(redundant=("or ders",), redundancy="twice")
    assert "redundant: " in str(raised.value)
    assert "redundancy 'twice': required or preferred" in str(raised.value)
    with pytest.raises(ConfigError, match="redundant: several texts wanted"):
        PublisherConfig(redundant="orders")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "spool"),
    [
        ("/var/spool/shop", Spool("/var/spool/shop")),
        (
            '{path = "/s", bytes_max = 100000, always = true}',
            Spool("/s", bytes_max=100_000, always=True),
        ),
        ("", None),
    ],
)
def test_a_spool_is_a_path_or_a_table(text: str, spool: Spool | None) -> None:
    assert PublisherConfig.from_env({"MESSAGEBUS_PUBLISHER_SPOOL": text}).spool == spool


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"bytes_max": 1}, "path: a folder wanted"),
        ({"path": "/s", "byte_max": 1}, "unknown setting 'byte_max'; did you mean 'bytes_max'"),
        ({"path": "/s", "bytes_max": 1, "after_s": -1}, "bytes_max 1: .* after_s -1: "),
        (17, "dict wanted, not int"),
    ],
)
def test_what_is_wrong_with_a_spool_is_told_at_once(value: object, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        PublisherConfig.from_mapping({"spool": value})


@pytest.mark.parametrize("path", ["", "a\0b", "a\ud800b"])
def test_a_path_that_no_file_system_takes_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match=r"path .*: a folder wanted"):
        Spool(path)


def test_what_two_brokers_have_to_confirm_has_no_place_in_a_spool() -> None:
    with pytest.raises(ConfigError, match="redundant and spool: "):
        PublisherConfig(redundant=("orders",), spool=Spool("/s"))


def test_files_of_settings_are_those_of_the_folder_where_they_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each dial reads a password again, and each list is kept."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "password").write_text("sesame")
    bus = BusConfig(password_file="password", list_cache="cache/list")
    monkeypatch.chdir("/")
    assert bus.current_password().reveal() == "sesame"
    assert bus.list_cache == f"{tmp_path}/cache/list"


# An AMQP URL as the broker.
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("amqp://mb", ("mb:5672", "guest", "guest", "/", False)),
        ("amqps://shop:a%2Fb%40c@mb/stag%2Fing", ("mb:5671", "shop", "a/b@c", "stag/ing", True)),
        ("amqp://shop@[::1]:99/", ("[::1]:99", "shop", "guest", "/", False)),
    ],
)
@pytest.mark.parametrize(
    "read",
    [
        lambda url: BusConfig(broker=url),
        lambda url: BusConfig.from_mapping({"broker": url}),
        lambda url: BusConfig.from_env({"MESSAGEBUS_BROKER": url}),
    ],
    ids=["code", "mapping", "environment"],
)
def test_an_amqp_url_says_broker_login_and_tls(
    read: Callable[[str], BusConfig], url: str, said: tuple[Any, ...]
) -> None:
    bus = read(url)
    assert (bus.broker, bus.user, bus.password.reveal(), bus.vhost, bus.tls) == said


@pytest.mark.parametrize(
    "settings",
    [
        {"broker": "amqp://shop:sesame"},
        {"broker": "amqp://shop:sesame@"},
        {"broker": "amqp://shop:sesame@mb:sesame"},
        {"broker": "amqp://shop:top/sesame@mb"},
        {"broker": "amqp://shop:sesame@mb?heartbeat=5"},
        {"broker": "amqp://shop:sesame@mb/a/b"},
        {"broker": "amqp://shop:sesame@[::1"},
        {"broker": "http://shop:sesame@mb"},
        {"broker": "shop:sesame@mb"},
        {"broker": "amqp://shop:sesame@mb", "heartbeat_s": -1},
    ],
)
def test_no_fault_of_a_brokers_url_shows_its_password(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        BusConfig(**settings)
    assert "sesame" not in f"{caught.value!r}{caught.value}{caught.value.__context__}"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("user", "other"),
        ("password", "other"),
        ("password_file", __file__),
        ("vhost", "other"),
        ("tls", True),
    ],
)
def test_what_a_brokers_url_says_is_not_said_otherwise(key: str, value: Any) -> None:
    url, word = "amqp://shop:sesame@mb/orders", key.removesuffix("_file")
    with pytest.raises(ConfigError, match=f"^{word}: the broker's URL has another one"):
        BusConfig(**{"broker": url, key: value})


def test_the_broker_of_nothing_configured_is_a_rabbitmq_on_this_host() -> None:
    bus = BusConfig.from_env({})
    assert (bus.broker, bus.user, bus.list_urls) == ("localhost:5672", "guest", ())


def test_every_field_of_every_config_has_a_converter() -> None:
    kinds = (BusConfig, PublisherConfig, ConsumerConfig, Batching, Spool)
    types = [each for kind in kinds for each in config._types_of(kind).values()]
    assert len(types) > 40
    assert [each for each in types if each not in config._CONVERTERS] == []
    with pytest.raises(KeyError):  # not read as a text
        config._read(Unread, {"share": "1/3"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unread:
    """A config with a field of a type that nothing converts."""

    share: complex = 0j


def test_a_client_without_a_bus_takes_the_environments_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MESSAGEBUS_BROKER", "amqp://shop:sesame@mb")
    monkeypatch.setenv("MESSAGEBUS_PUBLISHER_WINDOW", "7")
    bus, publisher = config.settings_of(None, None, PublisherConfig)
    assert (bus.broker, bus.user, publisher.window) == ("mb:5672", "shop", 7)
    assert config.settings_of(None, PublisherConfig(window=9), PublisherConfig)[1].window == 9
    given = BusConfig(broker="other")
    assert config.settings_of(given, None, PublisherConfig) == (given, PublisherConfig())
    monkeypatch.setenv("MESSAGEBUS_BROKR", "mb")
    for make in (Publisher, AsyncPublisher, lambda: Consumer(None, "queue:jobs")):
        with pytest.raises(ConfigError, match="BROKR"):
            make()


TOKEN = Secret("token")
CALLS_OF_A_BUS: dict[str, Callable[[None], object]] = {
    "Publisher": Publisher,
    "AsyncPublisher": AsyncPublisher,
    "Consumer": lambda bus: Consumer(bus, "orders", subscription="billing"),
    "AsyncConsumer": lambda bus: AsyncConsumer(bus, "orders", subscription="billing"),
    "Replay": lambda bus: Replay(bus, "orders"),
    "AsyncReplay": lambda bus: AsyncReplay(bus, "orders"),
    "stream_ends": lambda bus: stream_ends(bus, "orders"),
    "Relay": lambda bus: Relay("sqlite:///shop.db", bus),
    "AsyncRelay": lambda bus: AsyncRelay("sqlite:///shop.db", bus),
    "declare": lambda bus: declare(bus, "orders"),
    "brokers": admin.brokers,
    "count_subscriptions": admin.count_subscriptions,
    "delete_subscriptions": lambda bus: admin.delete_subscriptions(bus, "queue:a", token=TOKEN),
    "delete_topics": lambda bus: admin.delete_topics(bus, "orders", token=TOKEN),
    "purge_subscriptions": lambda bus: admin.purge_subscriptions(bus, "queue:a", token=TOKEN),
    "drain_broker": lambda bus: admin.drain_broker(bus, "mb1:5672", draining=True, token=TOKEN),
    "count_parked": admin.count_parked,
    "read_parked": admin.read_parked,
    "redrive_parked": lambda bus: admin.redrive_parked(bus, "queue:a"),
    "purge_parked": lambda bus: admin.purge_parked(bus, "queue:a"),
    "Trail": Trail,
    "QueueSampler": lambda bus: QueueSampler("folder", bus, ["queue:a"], run_id="r"),
}


@pytest.mark.parametrize("name", CALLS_OF_A_BUS)
def test_whatever_takes_a_bus_reads_the_environment_for_none(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESSAGEBUS_HEARTBEAT_S", "-1")
    with pytest.raises(ConfigError, match="heartbeat_s"):
        CALLS_OF_A_BUS[name](None)


def test_without_agents_the_list_is_the_broker_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MESSAGEBUS_BROKER", "amqps://shop:pw@mb7/shop")
    assert admin.brokers(None).names == {"mb7:5671"}
