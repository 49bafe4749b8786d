"""Quotas as policies of RabbitMQ: shares, names, patterns, and who is told from a foreign policy."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from messagebus.errors import ConfigError
from ops.cluster.quota_cli import Quotas, quota
from ops.cluster.quotas import Quota, is_quota
from ops.cluster.view import View
from ops.errors import LockHeld
from ops.local import files, secrets
from ops.local.layout import Layout
from ops.run.command import locked

BILLING = Quota(source="orders/billing", messages=10, megabytes=4)


@pytest.mark.parametrize(
    "bounds", [{"messages": 7}, {"megabytes": 9}, {"messages": 7, "megabytes": 9}]
)
def test_the_name_of_a_policy_says_the_whole_quota(bounds: dict[str, int]) -> None:
    wanted = Quota(source="queue:jobs", **bounds)
    assert Quota.read(wanted.name) == wanted


def test_other_policies_are_no_quotas() -> None:
    for name in ("mb.bound", "mb.quota", "mb.quota orders/billing messages=x", "quota"):
        assert Quota.read(name) is None
        assert not is_quota({"name": name, "pattern": ".*", "definition": {}})


def test_each_broker_has_its_share_and_never_more_bytes_than_provision_allows() -> None:
    shared = BILLING.policy(queues=3, partitions=0, bound=None)
    assert shared["definition"] == {"max-length": 4, "max-length-bytes": 1_333_334}
    assert BILLING.policy(queues=3, partitions=0, bound=1_000)["definition"] == {
        "max-length": 4,
        "max-length-bytes": 1_000,
    }
    only_messages = Quota(source="orders/billing", messages=1)
    assert only_messages.policy(queues=3, partitions=0, bound=None)["definition"] == {
        "max-length": 1
    }
    assert only_messages.policy(queues=3, partitions=0, bound=9)["definition"] == {
        "max-length": 1,
        "max-length-bytes": 9,
    }


def test_a_quota_is_of_its_own_queues_alone() -> None:
    plain, parts = BILLING.pattern(0), BILLING.pattern(32)
    assert re.search(plain, "mb.sub/orders/billing")
    assert not re.search(plain, "mb.sub/orders/billing-2")
    assert not re.search(plain, "mb.park/orders/billing")
    assert re.search(parts, "mb.seg/orders/billing/7.1")
    assert not re.search(parts, "mb.seg/orders/billing-2/7.1")
    jobs = Quota(source="queue:a.b", messages=1).pattern(0)
    assert re.search(jobs, "mb.queue/a.b")
    assert not re.search(jobs, "mb.queue/axb")


def test_a_policy_with_the_name_of_a_quota_and_other_content_is_foreign() -> None:
    mine = {"name": BILLING.name, **BILLING.policy(queues=3, partitions=0, bound=None)}
    assert is_quota(mine)
    assert not is_quota({**mine, "pattern": ".*"})
    assert not is_quota({**mine, "definition": {"message-ttl": 1}})
    assert not is_quota({**mine, "name": "mb.quota or:ders:x messages=1"})
    assert not is_quota({**mine, "name": "mb.quota orders messages=1"})


class Brokers:
    """Management APIs and agents of two nodes, by their addresses."""

    def __init__(self, layout: Layout) -> None:
        self.policies: dict[str, dict[str, Any]] = {}
        self.entries: list[dict[str, Any]] = [
            {"wanted": name, "number": 1, "origin": "x", "alive": True, "tomb": 0}
            for name in ("orders", "orders/billing", "queue:jobs", "parts")
        ]
        self.entries.append(
            {"wanted": "parts/all", "number": 1, "origin": "x", "alive": True, "partitions": 32}
        )

    def request(self, method: str, url: str, **given: Any) -> httpx.Response:
        if url.endswith("/topology"):
            return httpx.Response(200, json={"entries": self.entries, "intact": True})
        host, _, path = url.removeprefix("http://").partition("/api/policies/%2F")
        here = self.policies.setdefault(host, {})
        name = path.removeprefix("/").replace("%20", " ").replace("%2F", "/").replace("%3D", "=")
        name = name.replace("%3A", ":")
        if method == "GET":
            return httpx.Response(200, json=[{"name": n, **each} for n, each in here.items()])
        if method == "PUT":
            here[name] = given["json"]
            return httpx.Response(201)
        return httpx.Response(204 if here.pop(name, None) else 404)


@pytest.fixture
def brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Brokers:
    layout = Layout(dir=tmp_path, numbers=(1, 2))
    layout.inventory.write_text(files.inventory_toml(layout))
    secrets.ensure(layout.secrets_dir)
    made = Brokers(layout)
    monkeypatch.setattr("ops.cluster.management.httpx.request", made.request)
    return made


@pytest.fixture
def view(brokers: Brokers, tmp_path: Path) -> View:
    return View(Layout(dir=tmp_path, numbers=(1, 2)).inventory)


def test_a_new_quota_replaces_the_one_before_on_every_broker(view: View, brokers: Brokers) -> None:
    quotas = Quotas(view)
    quotas.set(BILLING)
    later = Quota(source="orders/billing", messages=100)
    quotas.set(later)
    assert [list(each) for each in brokers.policies.values()] == [[later.name]] * 2
    assert quotas.found() == {"mb1": {"orders/billing": later}, "mb2": {"orders/billing": later}}
    assert quotas.clear("orders/billing") == 2
    assert quotas.clear("orders/billing") == 0


def test_shares_are_computed_anew_and_a_deleted_source_loses_its_quota(
    view: View, brokers: Brokers
) -> None:
    quotas = Quotas(view)
    old = BILLING.policy(queues=1, partitions=0, bound=None)
    gone = Quota(source="orders/gone", messages=1)
    jobs = Quota(source="queue:jobs", messages=10)
    view.brokers.put_policy("mb1", BILLING.name, old)
    view.brokers.put_policy("mb1", gone.name, {})
    view.brokers.put_policy("mb2", jobs.name, {})
    assert quotas.share() == {"orders/billing": BILLING, "queue:jobs": jobs}
    for here in brokers.policies.values():
        assert set(here) == {BILLING.name, jobs.name}
        assert here[BILLING.name]["definition"]["max-length"] == 5


def test_a_partitioned_subscription_has_a_share_for_each_partition(
    view: View, brokers: Brokers
) -> None:
    wanted = Quota(source="parts/all", messages=3_200)
    Quotas(view).set(wanted)
    for here in brokers.policies.values():
        assert here[wanted.name]["definition"] == {"max-length": 100}
        assert here[wanted.name]["pattern"].startswith("^mb")


def test_a_quota_of_one_of_several_subscriptions_wants_a_word(view: View, brokers: Brokers) -> None:
    quotas = Quotas(view)
    quotas.check("orders/billing", refuse_topic=False)
    brokers.entries.append(
        {"wanted": "orders/audit", "number": 1, "origin": "x", "alive": True, "tomb": 0}
    )
    quotas = Quotas(view)
    with pytest.raises(ConfigError, match="orders/audit stores each refused message"):
        quotas.check("orders/billing", refuse_topic=False)
    quotas.check("orders/billing", refuse_topic=True)
    for kind in ("stream:logs", "delay:1000"):
        brokers.entries.append(
            {"wanted": kind, "number": 1, "origin": "x", "alive": True, "tomb": 0}
        )
    quotas = Quotas(view)
    # A bound of a stream would delete what it has.
    for unknown in ("orders", "orders/none", "queue:none", "stream:logs", "delay:1000"):
        with pytest.raises(ConfigError, match="no such subscription or queue"):
            quotas.check(unknown, refuse_topic=True)


def test_a_quota_of_a_subscription_beside_a_stream_wants_a_word(
    view: View, brokers: Brokers
) -> None:
    brokers.entries.append(
        {"wanted": "stream:orders", "number": 1, "origin": "x", "alive": True, "tomb": 0}
    )
    with pytest.raises(ConfigError, match="stream:orders stores each refused message"):
        Quotas(view).check("orders/billing", refuse_topic=False)


def test_the_command(view: View, brokers: Brokers) -> None:
    def run(*words: str) -> str:
        done = CliRunner().invoke(
            quota, [*words, "--inventory", str(view.file)], catch_exceptions=False
        )
        return done.output

    assert "--messages or --mb" in run("set", "queue:jobs")
    assert run("list") == "no quotas\n"
    assert (
        run("set", "queue:jobs", "--messages", "10")
        == "queue:jobs: 10 messages, shared by 2 brokers\n"
    )
    assert run("list") == "queue:jobs: 10 messages\n"
    view.brokers.drop_policy("mb2", "mb.quota queue:jobs messages=10")
    assert run("list") == "queue:jobs: 10 messages on mb1\nqueue:jobs: none on mb2\n"
    assert run("share") == "queue:jobs: 10 messages\n"
    with locked(view.file, "add mb4"):
        with pytest.raises(LockHeld, match="'add mb4'"):
            run("share")
        assert run("share", "--in-playbook") == "queue:jobs: 10 messages\n"
    assert run("clear", "queue:jobs") == "queue:jobs: no quota any more\n"
    assert json.dumps(list(brokers.policies.values())) == "[{}, {}]"
