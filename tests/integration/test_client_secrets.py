"""Promise: a password or token never appears in a log, a repr, an error or a log file of a part."""

from __future__ import annotations

import base64
import logging
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest

from messagebus import BusConfig, Consumer, LoginRefused, MessageBusError, Publisher, Secret
from ops.local.cluster import LocalCluster
from tests.support.faults import operators_drain, register

READY_WITHIN_S = 60.0
WRONG = "wrong-but-secret-7731"


@pytest.mark.guarantee("no-password-in-logs")
def test_passwords_appear_in_no_log_repr_or_error_of_a_client(
    cluster: LocalCluster, bus: BusConfig, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []
    with Publisher(bus) as publisher, Consumer(bus, f"queue:{topic}") as consumer:
        publisher.send_safe(f"queue:{topic}", b"x")
        delivery = consumer.receive(READY_WITHIN_S)
        assert delivery is not None
        consumer.ack(delivery)
        values: list[Any] = [bus, publisher, consumer, delivery, consumer.stats()]
        shown += [f"{value!r} {value!s}" for value in (*values, publisher.stats())]
    refused = replace(bus, password=Secret(WRONG))
    shown += _failing_logins(refused, topic)
    shown += [record.getMessage() + str(record.exc_text) for record in caplog.records]
    assert caplog.records
    for secret in (cluster.password, Secret(WRONG)):
        _assert_absent(bus.user, secret, "\n".join(shown))


@pytest.mark.guarantee("no-password-in-logs")
def test_passwords_and_tokens_appear_in_no_log_file_of_the_cluster(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    register(cluster, f"queue:{topic}")
    operators_drain(cluster, "mb1", False)
    _failing_logins(replace(bus, password=Secret(WRONG)), topic)
    files = [*cluster.layout.run_dir.glob("*.log"), *cluster.dir.glob("nodes/*/log/*.log")]
    assert len(files) > len(cluster.names)
    text = "\n".join(file.read_text(errors="replace") for file in files)
    for user, secret in (
        ("bus", cluster.password),
        ("admin", cluster.admin_password),
        ("", cluster.token),
        ("bus", Secret(WRONG)),
    ):
        _assert_absent(user, secret, text)


def _failing_logins(bus: BusConfig, topic: str) -> list[str]:
    """Return the output of clients whose password is wrong."""
    said = []
    with pytest.raises(LoginRefused) as publishing:
        Publisher(bus).start(require="one", timeout_s=READY_WITHIN_S)
    said += [repr(publishing.value), str(publishing.value)]
    with pytest.raises(MessageBusError) as consuming:
        Consumer(bus, f"queue:{topic}").start(require="all", timeout_s=READY_WITHIN_S)
    said += [repr(consuming.value), str(consuming.value)]
    return said


def _assert_absent(user: str, secret: Secret, text: str) -> None:
    word = secret.reveal()
    basic = base64.b64encode(f"{user}:{word}".encode()).decode()
    plain = base64.b64encode(f"\0{user}\0{word}".encode()).decode()
    for spelling in (word, quote(word), basic, plain, word.encode().hex()):
        assert spelling not in text, f"a secret of {user or 'operators'} is shown"
