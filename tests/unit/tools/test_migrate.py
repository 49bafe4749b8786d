"""`messagebus migrate plan`: exports of RabbitMQ, what they become, and exports that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from messagebus.__main__ import cli
from messagebus.commands.exits import Exit
from messagebus.tools.migrate import Plan, plan_of, read_definitions
from messagebus.topology import parse_wanted


def exchange(name: str, kind: str = "fanout", **arguments: object) -> dict[str, Any]:
    return {"name": name, "vhost": "/", "type": kind, "durable": True, "arguments": arguments}


def queue(
    name: str, *, durable: bool = True, auto_delete: bool = False, **arguments: object
) -> dict[str, Any]:
    return {
        "name": name,
        "vhost": "/",
        "durable": durable,
        "auto_delete": auto_delete,
        "arguments": {key.replace("_", "-"): value for key, value in arguments.items()},
    }


def binding(source: str, target: str, key: str = "", kind: str = "queue") -> dict[str, Any]:
    return {
        "source": source,
        "vhost": "/",
        "destination": target,
        "destination_type": kind,
        "routing_key": key,
        "arguments": {},
    }


def became(plan: Plan) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in plan.mapped:
        found.setdefault(each.what, []).append(each.becomes)
    return found


def left(plan: Plan) -> list[str]:
    return [each.what for each in plan.unmapped]


def test_a_fanout_is_a_topic_and_each_of_its_queues_a_subscription() -> None:
    plan = plan_of(
        {
            "exchanges": [exchange("orders")],
            "queues": [queue("billing"), queue("search")],
            "bindings": [binding("orders", "billing"), binding("orders", "search", "ignored")],
        }
    )
    assert became(plan) == {
        "exchange orders (fanout)": ["topic orders"],
        "queue billing": ["subscription orders/billing"],
        "queue search": ["subscription orders/search"],
    }
    assert left(plan) == []
    assert list(plan.declare) == ["orders", "orders/billing", "orders/search"]


def test_a_queue_of_the_default_exchange_is_a_queue() -> None:
    plan = plan_of({"queues": [queue("celery")], "bindings": [binding("", "celery", "celery")]})
    assert became(plan) == {"queue celery": ["queue:celery"]}


def test_each_key_of_a_direct_exchange_is_a_topic() -> None:
    plan = plan_of(
        {
            "exchanges": [exchange("shop", "direct")],
            "queues": [queue("all"), queue("paid")],
            "bindings": [
                binding("shop", "all", "order.new"),
                binding("shop", "all", "order.paid"),
                binding("shop", "paid", "order.paid"),
            ],
        }
    )
    assert became(plan)["queue all"] == [
        "subscription shop.order.new/all",
        "subscription shop.order.paid/all",
    ]
    assert became(plan)["queue paid"] == ["subscription shop.order.paid/paid"]
    assert left(plan) == []


def test_patterns_have_no_counterpart_and_exact_keys_of_a_topic_exchange_have() -> None:
    plan = plan_of(
        {
            "exchanges": [exchange("events", "topic"), exchange("log", "topic")],
            "queues": [queue("some"), queue("exact"), queue("everything")],
            "bindings": [
                binding("events", "some", "order.*"),
                binding("events", "exact", "order.new"),
                binding("events", "everything", "#"),
                binding("log", "everything", "#"),
            ],
        }
    )
    assert became(plan)["queue exact"] == ["subscription events.order.new/exact"]
    assert became(plan)["queue everything"] == ["subscription log/everything"]
    assert left(plan) == [
        "binding of some to events by order.*",
        "binding of everything to events by #",
    ]


@pytest.mark.parametrize("kind", ["headers", "x-consistent-hash", "x-random", "x-of-somebody"])
def test_other_exchanges_are_told_with_what_to_do_instead(kind: str) -> None:
    plan = plan_of(
        {
            "exchanges": [exchange("e", kind)],
            "queues": [queue("q")],
            "bindings": [binding("e", "q")],
        }
    )
    assert left(plan) == [f"exchange e ({kind})"]
    assert plan.unmapped[0].instead


def test_an_exchange_of_rabbitmq_itself_gets_another_name() -> None:
    plan = plan_of({"queues": [queue("q")], "bindings": [binding("amq.direct", "q", "k")]})
    assert became(plan)["queue q"] == ["subscription old-amq.direct.k/q"]


def test_exchanges_that_feed_others_or_nothing_are_told() -> None:
    plan = plan_of(
        {
            "exchanges": [exchange("a"), exchange("b"), exchange("amq.topic", "topic")],
            "queues": [queue("q")],
            "bindings": [
                binding("a", "b", kind="exchange"),
                binding("b", "q"),
                binding("b", "gone"),
                binding("gone", "q"),
            ],
        }
    )
    assert left(plan) == [
        "binding of b to a",
        "binding of gone to b",
        "binding of q to gone",
        "exchange a (fanout)",
    ]


@pytest.mark.parametrize(
    ("arguments", "unmapped"),
    [
        ({"x_queue_type": "quorum", "x_delivery_limit": 5, "x_queue_mode": "lazy"}, []),
        ({"x_dead_letter_exchange": "dlx", "x_dead_letter_routing_key": "k"}, []),
        ({"x_max_length": 10, "x_overflow": "reject-publish"}, []),
        ({"x_single_active_consumer": True, "x_expires": 60_000}, []),
        ({"x_max_length": 10}, ["max-length of queue q"]),
        ({"x_max_priority": 9}, ["max-priority of queue q"]),
        ({"x_message_ttl": 1_000}, ["message-ttl of queue q"]),
        ({"x_message_ttl": 1_000, "x_dead_letter_exchange": "e"}, ["queue q"]),
        ({"x_of_a_plugin": 1}, ["of-a-plugin of queue q"]),
    ],
    ids=str,
)
def test_each_argument_of_a_queue_is_mapped_or_told(
    arguments: dict[str, Any], unmapped: list[str]
) -> None:
    assert left(plan_of({"queues": [queue("q", **arguments)]})) == unmapped


def test_transient_queues_become_durable_and_it_is_said() -> None:
    (one,) = plan_of({"queues": [queue("q", durable=False, auto_delete=True)]}).mapped
    assert "it becomes durable" in one.note
    assert "Subscription.ephemeral" in one.note


def test_policies_shovels_and_users_are_mapped_or_told() -> None:
    policies = [
        {
            "name": "ha",
            "pattern": ".*",
            "definition": {"ha-mode": "all", "ha-sync-mode": "automatic"},
        },
        {"name": "ttl", "pattern": "^q", "definition": {"message-ttl": 1_000}},
        {"name": "fed", "pattern": "^x", "definition": {"federation-upstream-set": "all"}},
    ]
    plan = plan_of(
        {
            "policies": policies,
            "parameters": [{"name": "to-b", "component": "shovel", "value": {}}],
            "users": [{"name": "app"}, {"name": "admin"}],
        }
    )
    assert became(plan) == {"policy ha (.*)": ["nothing to do"]}
    assert left(plan) == [
        "message-ttl of policy ttl (^q)",
        "federation-upstream-set of policy fed (^x)",
        "shovel to-b",
        "2 users",
    ]
    assert "messagebus forward" in plan.unmapped[2].instead


def test_names_that_we_do_not_accept_are_changed_and_never_to_one_of_another() -> None:
    plan = plan_of(
        {"queues": [queue("order queue"), queue("order:queue"), queue("amq.gen-x"), queue("ü")]}
    )
    assert became(plan) == {
        "queue order queue": ["queue:order-queue"],
        "queue amq.gen-x": ["queue:old-amq.gen-x"],
    }
    assert left(plan) == ["queue order:queue", "queue ü"]
    for each in plan.declare:
        parse_wanted(each)


# The file.
def export(folder: Path, value: object) -> Path:
    path = folder / "definitions.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_the_command_prints_the_plan_and_what_declares_it(tmp_path: Path) -> None:
    path = export(
        tmp_path,
        {
            "rabbit_version": "3.8.9",
            "exchanges": [exchange("orders"), exchange("h", "headers")],
            "queues": [queue("billing")],
            "bindings": [binding("orders", "billing")],
        },
    )
    done = CliRunner().invoke(cli, ["migrate", "plan", str(path)])
    assert done.exit_code == Exit.FOUND
    assert done.output.splitlines() == [
        "exchange orders (fanout) -> topic orders",
        "queue billing -> subscription orders/billing",
        "cannot: exchange h (headers): no routing by headers: use a topic for each kind of message",
        "messagebus declare orders orders/billing",
    ]
    told = json.loads(CliRunner().invoke(cli, ["migrate", "plan", str(path), "--json"]).output)
    assert told["declare"] == ["orders", "orders/billing"]


def test_an_export_that_maps_as_a_whole_ends_with_0(tmp_path: Path) -> None:
    path = export(tmp_path, {"queues": [{"name": "jobs"}]})  # of one virtual host: no vhost is said
    assert CliRunner().invoke(cli, ["migrate", "plan", str(path)]).exit_code == Exit.DONE


def test_of_several_virtual_hosts_one_is_chosen(tmp_path: Path) -> None:
    path = export(tmp_path, {"queues": [queue("a"), {**queue("b"), "vhost": "shop"}]})
    assert [each["name"] for each in read_definitions(path, "shop")["queues"]] == ["b"]
    for given, told, code in (
        (None, "--vhost, one of /, shop", Exit.USAGE),
        ("x", "'x'", Exit.ABSENT),
    ):
        words = ["migrate", "plan", str(path), *(["--vhost", given] if given else [])]
        done = CliRunner().invoke(cli, words)
        assert (done.exit_code, told in done.output) == (code, True)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no JSON"),
        ("[]", "neither queues nor exchanges"),
        ("{}", "neither queues nor exchanges"),
        ('{"queues": {}}', "queues: a list"),
        ('{"queues": [1]}', "queues: a list"),
        ('{"queues": [{"name": 1}]}', "queues: a list"),
        ('{"queues": [], "bindings": [{"source": "a"}]}', "bindings: a list"),
        ("[" * 100_000, "no JSON"),
        ("\x00", "no JSON"),
    ],
)
def test_a_file_that_is_no_export_is_refused_in_one_line(
    tmp_path: Path, text: str, told: str
) -> None:
    done = CliRunner().invoke(cli, ["migrate", "plan", str(export(tmp_path, text))])
    assert (done.exit_code, told in done.output, done.output.count("\n")) == (Exit.USAGE, True, 1)


def test_two_exchanges_whose_messages_would_meet_in_one_topic_are_told() -> None:
    plan = plan_of(
        {
            "exchanges": [exchange("shop", "direct"), exchange("shop.eu")],
            "queues": [queue("a"), queue("b")],
            "bindings": [binding("shop", "a", "eu"), binding("shop.eu", "b")],
        }
    )
    assert list(plan.declare) == ["shop.eu", "shop.eu/a"]
    assert left(plan) == ["exchange shop.eu (fanout), key ''", "queue b, bound to shop.eu"]
    assert "is the name for exchange 'shop', key 'eu' already" in plan.unmapped[0].instead


def test_what_a_name_has_in_it_moves_no_cursor(tmp_path: Path) -> None:
    path = export(tmp_path, {"queues": [queue("\x1b[2Jq")]})
    assert "\x1b" not in CliRunner().invoke(cli, ["migrate", "plan", str(path)]).output
