from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ops.provision.changes import Observed, changes, observe, restart_wanted
from ops.provision.wanted import WantedFile, WantedHost

CONFIG = WantedFile(path=Path("/etc/rabbitmq/advanced.config"), text="[].\n")
DEFINITIONS = WantedFile(path=Path("/etc/rabbitmq/definitions.json"), text="{}")
AGENT = WantedFile(path=Path("/etc/messagebus/agent.toml"), text="a = 1\n")
UNIT = WantedFile(path=Path("/etc/systemd/system/messagebus-agent.service"), text="[Unit]\n")
WANTED = WantedHost(
    name="h1",
    packages={"rabbitmq-server": "3.10.8-1", "chrony": ""},
    users={"messagebus": "rabbitmq"},
    folders={Path("/var/lib/messagebus"): "messagebus:messagebus"},
    files=(CONFIG, DEFINITIONS, AGENT, UNIT),
    units=("rabbitmq-server", "messagebus-agent"),
    program="abc",
)
RIGHT = Observed(
    packages={"rabbitmq-server": "3.10.8-1", "chrony": "4.3"},
    files={
        **{file.path: (file.digest, 0o644, "root:root") for file in WANTED.files},
        Path("/var/lib/messagebus"): ("", 0o750, "messagebus:messagebus"),
    },
    users={"messagebus": frozenset({"messagebus", "rabbitmq"})},
    enabled=frozenset(WANTED.units),
    active=frozenset(WANTED.units),
    program="abc",
    has_cookie=True,
)


def told(observed: Observed) -> list[str]:
    return [change.what for change in changes(WANTED, observed)]


def test_a_host_as_it_should_be_is_left_alone() -> None:
    assert changes(WANTED, RIGHT) == []


def test_a_bare_host_gets_everything_in_an_order_that_works() -> None:
    assert told(Observed()) == [
        "install rabbitmq-server=3.10.8-1, chrony",
        "make user messagebus",
        "put messagebus into group rabbitmq",
        "make folder /var/lib/messagebus",
        "write /etc/rabbitmq/advanced.config (new)",
        "write /etc/rabbitmq/definitions.json (new)",
        "write /etc/messagebus/agent.toml (new)",
        "write /etc/systemd/system/messagebus-agent.service (new)",
        "put the agent's program into /opt/messagebus/abc",
        "let the agent have the broker's cookie",
        "have systemd read its units",
        "start rabbitmq-server at boot",
        "start messagebus-agent at boot",
    ]


def test_a_package_of_another_version_is_installed_in_the_wanted_one() -> None:
    other = replace(RIGHT, packages={**RIGHT.packages, "rabbitmq-server": "3.9.0-1"})
    assert told(other) == ["install rabbitmq-server=3.10.8-1"]


@pytest.mark.parametrize(
    ("file", "has", "then"),
    [
        (CONFIG, ("other", 0o644, "root:root"), ["write /etc/rabbitmq/advanced.config (differs)"]),
        (
            DEFINITIONS,
            ("other", 0o644, "root:root"),
            [
                "write /etc/rabbitmq/definitions.json (differs)",
                "tell the broker its users, rights and policies",
            ],
        ),
        (
            AGENT,
            (AGENT.digest, 0o600, "root:root"),
            ["write /etc/messagebus/agent.toml (mode or owner)", "restart the agent"],
        ),
        (
            UNIT,
            ("other", 0o644, "root:root"),
            [
                "write /etc/systemd/system/messagebus-agent.service (differs)",
                "have systemd read its units",
                "restart the agent",
            ],
        ),
    ],
)
def test_what_differs_is_written_and_brought_about(
    file: WantedFile, has: tuple[str, int, str], then: list[str]
) -> None:
    assert told(replace(RIGHT, files={**RIGHT.files, file.path: has})) == then


def test_a_broker_that_runs_is_not_restarted_and_that_it_should_be_is_told() -> None:
    other = replace(RIGHT, files={**RIGHT.files, CONFIG.path: ("x", 0o644, "root:root")})
    made = changes(WANTED, other)
    assert not any("rabbitmq-server" in (change.argv or ()) for change in made)
    assert restart_wanted(made, other)
    assert not restart_wanted(made, replace(other, active=frozenset()))


def test_a_new_program_restarts_the_agent() -> None:
    assert told(replace(RIGHT, program="before")) == [
        "put the agent's program into /opt/messagebus/abc",
        "restart the agent",
    ]


FILE, FOLDER = Path("/etc/a b"), Path("/var/lib/messagebus")
ASKED = WantedHost(
    name="h1",
    packages={"rabbitmq-server": "", "chrony": ""},
    users={"messagebus": "rabbitmq"},
    folders={FOLDER: "messagebus:messagebus"},
    files=(WantedFile(path=FILE, text="x"),),
    units=("chrony", "rabbitmq-server"),
)
DIGEST = ASKED.files[0].digest


def observed(answers: dict[str, str]) -> Observed:
    def ask(argv: Sequence[str]) -> str:
        line = " ".join(argv)
        return next((said for part, said in answers.items() if part in line), "")

    return observe(ASKED, ask, cookie_copy=Path("/copy"))


def test_a_host_that_has_everything() -> None:
    found = observed(
        {
            "dpkg-query": "rabbitmq-server 3.10.8-1 install ok installed\n"
            "chrony 4.3 deinstall ok config-files\n",
            "stat": f"644 root:root {FILE}\n750 messagebus:messagebus {FOLDER}\n",
            "sha256sum": f"{DIGEST}  {FILE}\n",
            "id -nG": "messagebus rabbitmq\n",
            "is-enabled": "enabled\n",
            "is-active rabbitmq-server": "active\n",
            "is-active": "inactive\n",
            "readlink": "abc\n",
        }
    )
    assert found == Observed(
        packages={"rabbitmq-server": "3.10.8-1"},
        files={
            FILE: (DIGEST, 0o644, "root:root"),
            FOLDER: ("", 0o750, "messagebus:messagebus"),
        },
        users={"messagebus": frozenset({"messagebus", "rabbitmq"})},
        enabled=frozenset({"chrony", "rabbitmq-server"}),
        active=frozenset({"rabbitmq-server"}),
        program="abc",
        has_cookie=True,
    )


def test_a_host_that_has_nothing_and_says_so_in_many_ways() -> None:
    found = observed(
        {
            "dpkg-query": "dpkg-query: no packages found matching rabbitmq-server\n",
            "stat": f"stat: cannot statx '{FILE}': No such file or directory\n",
            "sha256sum": f"sha256sum: {FILE}: No such file or directory\n",
            "id -nG": "id: 'messagebus': no such user\n",
            "is-enabled": "Failed to get unit file state: No such file or directory\n",
            "is-active": "inactive\n",
            "cmp": "cmp: /var/lib/rabbitmq/.erlang.cookie: No such file or directory\n",
        }
    )
    assert found == Observed()


def test_a_gateway_is_restarted_for_its_settings_and_reads_its_tokens_by_itself() -> None:
    files = {
        name: WantedFile(path=Path(f"/etc/messagebus/gateway.{name}"), text="1")
        for name in ("toml", "password", "tokens.toml")
    }
    units = (*WANTED.units, "messagebus@gateway")
    wanted = replace(WANTED, files=(*WANTED.files, *files.values()), units=units)
    same = {file.path: (file.digest, 0o644, "root:root") for file in files.values()}
    right = replace(
        RIGHT,
        files={**RIGHT.files, **same},
        enabled=frozenset(units),
        active=frozenset(units),
    )
    assert changes(wanted, right) == []

    def restarts(name: str) -> list[str]:
        other = {**right.files, files[name].path: ("", 0o644, "root:root")}
        made = changes(wanted, replace(right, files=other))
        return [change.what for change in made if "restart" in change.what]

    assert restarts("toml") == restarts("password") == ["restart the gateway"]
    assert restarts("tokens.toml") == []
