"""Names of `import messagebus`: every public name of every public module, and no other."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import messagebus
import messagebus.admin

# Modules whose names are for other parts of this repository, or that have an import of their own.
NOT_EXPORTED = {
    "messagebus.admin.proof": "what agents and operators prove to each other, for the kits too",
    "messagebus.http": "the servers of the agent, the gateway, the monitor and the health checks",
    "messagebus.recording.events": "columns of recorded events, for bench and spark",
    "messagebus.bodies": "text and JSON of bodies, for the gateway and the tools too",
    "messagebus.checks": "ranges of settings, for every module that has some",
    "messagebus.clock": "the two clocks, for the agent and the tools too",
    "messagebus.numbers": "numbers from outside, for the services too",
    "messagebus.files": "files written whole, for the agent, the tools and the kits too",
    "messagebus.databases": "statements in applications' transactions, for outbox, inbox and stores",
    "messagebus.dialects": "what one database says otherwise than the others",
    "messagebus.dsn": "addresses of databases, for outbox and stores",
    "messagebus.stores": "Dedup is exported; stores have an import of their own",
    "messagebus.terminal": "what commands print, for the kits too",
    "messagebus.tls": "certificates, for the agent and the kits too",
    "messagebus.topology": "what agents declare",
    "messagebus.worker": "what the command of that name does",
    "messagebus.testing": "imported by applications' tests by its own name",
}
# Public in their module for its neighbours, and not for applications.
INSIDE = {
    "messagebus.app": {"Clients"},
    "messagebus.broker": {
        *("AGENT_PORT", "AMQP_PORT", "AmqpUrl", "LIST_BYTES_MAX", "WIRE_VERSION", "is_http"),
    },
    "messagebus.config": {"read_secret"},
    "messagebus.consumer": {"as_dedup", "as_source", "fulfilled"},
    "messagebus.destination": {
        "DELAY_STEPS_MS",
        "EPHEMERAL_EXPIRES_S",
        "NAME_BYTES_MAX",
        "Delay",
        "delay_step",
        "expires",
        "parse_destination",
    },
    "messagebus.errors": {
        "BindingError",
        "ChannelRefused",
        "LinkError",
        "ListError",
        "ListInvalid",
        "ListUnavailable",
        "RecordingFailed",
    },
    "messagebus.replay": {"Position", "behind", "stream_ends"},
    "messagebus.envelope": {
        "FIELDS_OF_MESSAGE",
        "Enveloped",
        "Layout",
        "as_envelope",
        "delivered",
        "read_envelope",
        "tagged",
        "write_envelope",
    },
    "messagebus.handling": {
        "TEXT_BYTES_MAX",
        "Words",
        "checked_after",
        "checked_grace",
        "checked_wait",
        "judge",
        "park_headers",
        "retry_headers",
        "rule_of",
    },
    "messagebus.inbox": {"inbox_ddl", "table_missing"},
    "messagebus.message": {"BODY_BYTES_MAX", "Header", "Options", "Reading"},
    "messagebus.payloads": {"Codec", "Reader", "as_payload", "reader"},
    "messagebus.publisher": {"raise_unless_confirmed"},
    "messagebus.secret": {"split_address"},
}
# Re-exported from inside, because public values hold it.
FROM_INSIDE = {"Dedup", "Receipt"}


# Most public names at one door that a newcomer can look through; operators' names have a door of their own.
NAMES_MAX = 75
PACKAGES = [messagebus, messagebus.admin]


def public_modules() -> list[str]:
    found = [
        f"{package.__name__}.{module.name}"
        for package in (messagebus, messagebus.admin)
        for module in pkgutil.iter_modules(package.__path__)
        if not module.name.startswith("_")
    ]
    packages = {
        "messagebus.admin",
        "messagebus.commands",
        "messagebus.core",
        "messagebus.integrations",
        "messagebus.observing",
        "messagebus.recording",
        "messagebus.services",
        "messagebus.telemetry",
        "messagebus.tools",
    }
    return [name for name in found if name not in packages | NOT_EXPORTED.keys()]


def test_all_is_the_union_of_the_public_modules() -> None:
    names = {
        name
        for module in public_modules()
        for name in set(import_module(module).__all__) - INSIDE.get(module, set())
    }
    assert {*messagebus.__all__, *messagebus.admin.__all__} == names | FROM_INSIDE


def test_the_front_door_has_few_names_and_none_of_operators() -> None:
    assert len(messagebus.__all__) <= NAMES_MAX
    assert set(messagebus.__all__) & set(messagebus.admin.__all__) == set()
    own = [name for name, home in vars(messagebus)["_HOME_OF"].items() if ".admin." in home]
    assert own == ["Registration", "declare"]  # a program declares what it publishes to


@pytest.mark.parametrize("package", PACKAGES)
def test_all_is_sorted_and_has_no_name_twice(package: ModuleType) -> None:
    assert list(package.__all__) == sorted(set(package.__all__), key=str)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_exported_name_is_there(package: ModuleType) -> None:
    assert [name for name in package.__all__ if not hasattr(package, name)] == []


@pytest.mark.parametrize("module", [*public_modules(), *NOT_EXPORTED])
def test_every_name_of_a_modules_all_exists_and_no_exception_is_real(module: str) -> None:
    loaded = import_module(module)
    missing = [name for name in loaded.__all__ if not hasattr(loaded, name)]
    assert missing == []
    assert INSIDE.get(module, set()) <= set(loaded.__all__)


@pytest.mark.parametrize("module", public_modules())
def test_every_public_class_and_function_of_a_module_is_in_its_all_or_private(module: str) -> None:
    loaded = import_module(module)
    defined = {
        name
        for name, value in vars(loaded).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module
    }
    for name in defined - set(loaded.__all__):
        assert not inspect.isclass(vars(loaded)[name]), f"{module}.{name} is in no __all__"


@pytest.mark.parametrize("package", PACKAGES)
def test_the_types_for_checkers_name_the_same_homes_as_the_table(package: ModuleType) -> None:
    stub = ast.parse(Path(str(package.__file__)).with_suffix(".pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.asname: node.module for node in imports for alias in node.names if alias.asname}
    assert list(homes) != []
    assert homes == vars(package)["_HOME_OF"]
    for name, home in homes.items():
        assert getattr(package, str(name)) is getattr(import_module(str(home)), str(name))


def test_an_unknown_name_is_told_as_of_any_module() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Publishr'"):
        messagebus.Publishr  # type: ignore[attr-defined]  # noqa: B018
    assert {"Publisher", "__all__"} <= set(dir(messagebus))


def test_importing_the_package_loads_none_of_it() -> None:
    """Every test run on a machine with it installed imports the plug-in, and this with it."""
    told = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, timeout=60
    )
    assert told.stdout.split() == [
        "messagebus",
        "messagebus.testing",
        "messagebus.testing.plugin",
    ]


PROBE = """
import sys
before = set(sys.modules)
import messagebus.testing.plugin
heavy = ("messagebus", "pika", "httpx", "asyncio", "click", "ssl")
print(*sorted(m for m in set(sys.modules) - before if m.partition(".")[0] in heavy))
"""


# Public doors, with the callables that applications meet there.
DOORS = (
    "messagebus",
    "messagebus.admin",
    "messagebus.errors",
    "messagebus.testing",
    "messagebus.integrations.django",
    "messagebus.integrations.topics",
    "messagebus.outbox",
    "messagebus.payloads",
    "messagebus.recording.recorder",
    "messagebus.telemetry.prometheus",
    "messagebus.tools.sampler",
)


# These compare with any fields of a message, by name; they have no options to hide.
COMPARES = {"messagebus.testing.MemoryBus.assert_published"}


# Moments, in ms since 1970; not durations.
MOMENTS = {
    "messagebus.admin.ParkedCount.__init__(oldest_ms)",
    "messagebus.admin.ParkedMessage.__init__(first_ms)",
    "messagebus.admin.ParkedMessage.__init__(parked_ms)",
    "messagebus.admin.SpooledMessage.__init__(accepted_ms)",
}


def public_callables() -> dict[str, Callable[..., object]]:
    """Return every public function, constructor and method behind the doors."""
    found: dict[str, Callable[..., object]] = {}
    for door in DOORS:
        module = import_module(door)
        for name in getattr(module, "__all__", None) or vars(module):
            thing = getattr(module, name)
            if inspect.isclass(thing) and thing.__module__.startswith("messagebus"):
                members = {"__init__": thing.__init__, **vars(thing)}
                for inner, member in members.items():
                    member = getattr(member, "__func__", member)  # of a class method
                    is_ours = inspect.isfunction(member) and member.__module__.startswith(
                        "messagebus"
                    )
                    if is_ours and (inner == "__init__" or inner[0] != "_"):
                        found[f"{door}.{name}.{inner}"] = member
            elif inspect.isfunction(thing) and name[0] != "_":
                found[f"{door}.{name}"] = thing
    return found


def test_no_public_callable_hides_its_options() -> None:
    """Completion, hover and type checkers show only what stands in the signature."""
    callables = public_callables()
    assert len(callables) > 250
    assert {"messagebus.Publisher.submit", "messagebus.Message.json"} <= callables.keys()
    hidden = [
        name
        for name, each in callables.items()
        for parameter in inspect.signature(each).parameters.values()
        if parameter.kind is inspect.Parameter.VAR_KEYWORD
    ]
    assert set(hidden) == COMPARES


def test_every_duration_in_a_public_signature_or_setting_is_in_seconds() -> None:
    """A name that ends in _ms would be a second unit beside all the names in _s."""
    in_ms = {
        f"{name}({parameter})"
        for name, each in public_callables().items()
        for parameter in inspect.signature(each).parameters
        if parameter.endswith("_ms")
    }
    assert in_ms == MOMENTS
