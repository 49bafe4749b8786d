"""messagebus.config: settings, checked whole at the edge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus.broker import Broker
from messagebus.config import Batching, BusConfig, ConsumerConfig, PublisherConfig
from messagebus.errors import ConfigError
from messagebus.secret import Secret


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


def test_what_operators_and_tests_set_is_no_setting() -> None:
    others = ["MESSAGEBUS_INVENTORY", "MESSAGEBUS_LOCAL_DIR", "MESSAGEBUS_TEST_TIME_FACTOR"]
    assert BusConfig.from_env(dict.fromkeys(others, "x")) == BusConfig()


def test_an_unknown_variable_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'usr'; did you mean 'user'"):
        BusConfig.from_env({"MESSAGEBUS_USR": "bus"})


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        BusConfig(broker="lb:0", list_urls=("ftp://x",), heartbeat_s=-1)
    told = str(raised.value)
    assert all(key in told for key in ("broker 'lb:0'", "list_urls 'ftp://x'", "heartbeat_s -1"))


@pytest.mark.parametrize("url", ["", "x", "ftp://x", "http://", "http://[::1", "http://x:99999/"])
def test_a_list_address_is_http(url: str) -> None:
    with pytest.raises(ConfigError, match="list_urls"):
        BusConfig(list_urls=(url,))


def test_a_password_is_in_no_error_and_no_repr() -> None:
    faulty: list[dict[str, Any]] = [
        {"password": ["sesame"]},
        {"password": Secret("sesame"), "heartbeat_s": "x"},
        {"password": "sesame", "heartbeat_s": -1},
        {"broker": "amqp://bus:sesame@lb:5672"},
        {"list_urls": ["htp://bus:sesame@lb/consumer-list"]},
    ]
    for values in faulty:
        with pytest.raises(ConfigError) as raised:
            BusConfig.from_mapping(values)
        assert "sesame" not in str(raised.value)
    assert "sesame" not in repr(BusConfig.from_mapping({"password": "sesame"}))


def test_a_password_file_is_read_again_each_time(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("one\n")
    bus = BusConfig(password_file=str(path), password=Secret("unused"))
    assert bus.current_password() == Secret("one")
    path.write_text("two")
    assert bus.current_password() == Secret("two")


@pytest.mark.parametrize("raw", [None, b"\xff\xfe"])
def test_a_password_file_that_cannot_be_read_is_told(tmp_path: Path, raw: bytes | None) -> None:
    path = tmp_path / "password"
    if raw is not None:
        path.write_bytes(raw)
    with pytest.raises(ConfigError, match="password_file: ") as raised:
        BusConfig(password_file=str(path)).current_password()
    assert "xff" not in str(raised.value)


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "bus.toml"
    path.write_text('broker = "lb:1"\nlist_urls = ["http://a/"]\nheartbeat_s = 5\n')
    assert BusConfig.from_file(path) == BusConfig(
        broker="lb:1", list_urls=("http://a/",), heartbeat_s=5
    )


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


@given(
    st.dictionaries(
        st.sampled_from(["broker", "list_urls", "user", "password", "heartbeat_s", "brokr"]),
        json_values,
    )
)
def test_of_any_mapping_only_config_error_escapes(values: dict[str, Any]) -> None:
    try:
        bus = BusConfig.from_mapping(values)
    except ConfigError:
        return
    assert 0 <= bus.heartbeat_s <= 3600


@pytest.mark.parametrize(
    ("kind", "setting", "good", "bad"),
    [
        (PublisherConfig, "window", (1, 65_535), (0, 65_536, "9", True, 1.0)),
        (PublisherConfig, "backlog_messages_max", (1, 10_000_000), (0, 10_000_001)),
        (PublisherConfig, "deadline_ms", (1, 86_400_000), (0, -1)),
        (PublisherConfig, "attempts_max", (1,), (0,)),
        (PublisherConfig, "connection_lifetime_s", (1,), (0,)),
        (PublisherConfig, "confirm_slow_ms", (1,), (0,)),
        (Batching, "count_max", (1, 10_000), (0, 10_001)),
        (Batching, "bytes_max", (1, 16 * 1024 * 1024), (0, 16 * 1024 * 1024 + 1)),
        (Batching, "linger_ms", (0, 60_000), (-1, 60_001)),
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


def test_a_batch_of_no_destination_or_of_another_type_is_told() -> None:
    wrong: Any = {"not a name": Batching(), "queue:jobs": 50}
    with pytest.raises(ConfigError, match=r"'not a name'.*'queue:jobs': Batching wanted, not int"):
        PublisherConfig(batch=wrong)
