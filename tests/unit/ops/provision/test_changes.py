"""Hosts as they are, and what has to change on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from inventory.errors import CommandFailed
from inventory.shell import Remote
from ops.errors import HostKeyWrong, HostUnreachable, NoRoom, SudoRefused
from ops.provision.changes import Change, Observed, changes, observe, obstacles, restart_wanted
from ops.provision.hosts import Root, check_room, look, make
from ops.provision.program import Program
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
    broker="mb1",
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
    held=frozenset({"rabbitmq-server", "erlang-base"}),
    node_name="mb1@localhost",
)


def told(observed: Observed) -> list[str]:
    return [change.what for change in changes(WANTED, observed)]


def test_a_host_as_it_should_be_is_left_alone() -> None:
    assert changes(WANTED, RIGHT) == []


def test_a_bare_host_gets_everything_in_an_order_that_works() -> None:
    assert told(Observed()) == [
        "install rabbitmq-server=3.10.8-1, chrony",
        "stop rabbitmq-server, which its package starts",
        "hold rabbitmq-server, erlang-base: `ops upgrade` alone changes them",
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


def test_what_a_package_starts_is_stopped_once_and_never_where_ours_runs() -> None:
    """Debian's packages start a broker of another name, and an HAProxy without our admin socket."""
    front = WantedHost(name="h2", packages={"chrony": "", "haproxy": ""}, units=("haproxy",))
    first = [change.argv for change in changes(front, Observed())]
    assert first.index(("systemctl", "stop", "haproxy")) == 1
    later = Observed(packages={"haproxy": "2.6"}, active=frozenset({"haproxy"}))
    assert not any("stop" in (change.argv or ()) for change in changes(front, later))
    drop_in = WantedFile(
        path=Path("/etc/systemd/system/haproxy.service.d/messagebus.conf"), text="[Service]\n"
    )
    interrupted = changes(replace(front, files=(drop_in,)), later)
    assert ("systemctl", "stop", "haproxy") in [change.argv for change in interrupted]
    upgraded = replace(RIGHT, packages={"rabbitmq-server": "3.10.8-1"})
    assert told(upgraded) == ["install chrony"]


def test_an_installed_broker_is_never_changed_to_another_version() -> None:
    """Its package would restart it in place, on the data of the old version, host after host."""
    other = replace(RIGHT, packages={**RIGHT.packages, "rabbitmq-server": "3.9.0-1"})
    assert told(other) == []
    assert obstacles(WANTED, RIGHT) == obstacles(WANTED, Observed()) == []
    (why,) = obstacles(WANTED, other)
    assert why.startswith(
        "rabbitmq-server 3.9.0-1 is installed, not 3.10.8-1: `ops upgrade mb1 --to 3.10.8-1`"
    )
    (hold,) = changes(WANTED, replace(RIGHT, held=frozenset({"erlang-base"})))
    assert hold.argv == ("apt-mark", "hold", "rabbitmq-server", "erlang-base")


def test_a_host_that_has_the_broker_of_another_is_not_set_up_over_it() -> None:
    (why,) = obstacles(WANTED, replace(RIGHT, node_name="mb2@localhost"))
    assert "its broker is node mb2@localhost, not mb1@localhost: is its SSH address that of" in why
    assert obstacles(replace(WANTED, broker=""), replace(RIGHT, node_name="x@y")) == []


@pytest.mark.parametrize(
    ("file", "has", "then"),
    [
        (CONFIG, ("other", 0o644, "root:root"), ["write /etc/rabbitmq/advanced.config (differs)"]),
        (
            DEFINITIONS,
            ("other", 0o644, "root:root"),
            [
                "write /etc/rabbitmq/definitions.json (differs)",
                "set the users, rights and policies of the broker",
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
            "dpkg-query": "rabbitmq-server 3.10.8-1 hold ok installed\n"
            "chrony 4.3 deinstall ok config-files\n",
            "stat": f"644 root:root {FILE}\n750 messagebus:messagebus {FOLDER}\n",
            "sha256sum": f"{DIGEST}  {FILE}\n",
            "id -nG": "messagebus rabbitmq\n",
            "is-enabled": "enabled\n",
            "is-active rabbitmq-server": "active\n",
            "is-active": "inactive\n",
            "readlink": "abc\n",
            "apt-mark showhold": "erlang-base\nrabbitmq-server\n",
            "grep -h ^NODENAME=": "NODENAME=mb1@localhost\n",
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
        held=frozenset({"erlang-base", "rabbitmq-server"}),
        node_name="mb1@localhost",
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
            "grep": "grep: /etc/rabbitmq/rabbitmq-env.conf: No such file or directory\n",
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
        return [change.what for change in made if "start the gateway" in change.what]

    assert restarts("toml") == restarts("password") == ["restart the gateway"]
    assert restarts("tokens.toml") == []
    ended = changes(wanted, replace(right, active=right.active - {"messagebus@gateway"}))
    assert [change.what for change in ended] == ["start the gateway"]


def test_keepalived_reads_its_settings_anew_and_is_started_when_it_does_not_run() -> None:
    settings = WantedFile(path=Path("/etc/keepalived/keepalived.conf"), text="1")
    units = (*WANTED.units, "keepalived")
    wanted = replace(WANTED, files=(*WANTED.files, settings), units=units)
    right = replace(
        RIGHT,
        files={**RIGHT.files, settings.path: (settings.digest, 0o644, "root:root")},
        enabled=frozenset(units),
        active=frozenset(units),
    )
    assert changes(wanted, right) == []
    for other in (
        replace(right, files={**right.files, settings.path: ("", 0o644, "root:root")}),
        replace(right, active=right.active - {"keepalived"}),
    ):
        assert changes(wanted, other)[-1].argv == ("systemctl", "reload-or-restart", "keepalived")


SECRET = "pa55"


class Far:
    """The far end of SSH. fails: a word of argv -> exit code and output."""

    def __init__(self, **fails: tuple[int, str]) -> None:
        self.ran: list[list[str]] = []
        self.read: list[str] = []
        self.fails = fails

    def run(self, argv: Sequence[str], *, timeout_s: float, stdin: str = "") -> str:
        self.ran.append(list(argv))
        self.read.append(stdin)
        for word, (code, said) in self.fails.items():
            if word in argv:
                raise CommandFailed(argv, code, said, "h1")
        return "said"

    def root(self, *, sudo: bool = False) -> Root:
        return Root(cast(Remote, self), host="h1", sudo=sudo)


def test_a_file_is_written_whole_before_it_has_its_name_and_no_secret_is_in_argv() -> None:
    far = Far()
    path = Path("/etc/messagebus/password")
    far.root().write(WantedFile(path=path, text=SECRET, mode=0o640, owner="root:messagebus"))
    new = "/etc/messagebus/password.messagebus-new"
    assert [argv[0] for argv in far.ran] == ["mkdir", "install", "dd", "mv"]
    assert far.ran[1] == [
        "install",
        "-m",
        "640",
        "-o",
        "root",
        "-g",
        "messagebus",
        "/dev/null",
        new,
    ]
    assert far.ran[3] == ["mv", "-f", "-T", new, str(path)]
    assert far.read == ["", "", SECRET, ""]
    assert SECRET not in str(far.ran)


def test_who_is_not_root_becomes_it_without_a_password() -> None:
    far = Far()
    far.root(sudo=True).run(("true",))
    assert far.ran == [["sudo", "-n", "--", "true"]]


@pytest.mark.parametrize(
    ("said", "kind", "told"),
    [
        ((127, "SSH: [Errno 113] No route to host"), HostUnreachable, "h1: no SSH: .*No route"),
        (
            (127, "SSH: Host key for server 'h1' does not match: got 'AAAA', expected 'AAAB'"),
            HostKeyWrong,
            "h1: its host key is not the known one: another machine might answer",
        ),
        (
            (127, "SSH: Server 'h1' not found in known_hosts"),
            HostKeyWrong,
            "h1: its host key is not known: another machine might answer",
        ),
        ((1, "sudo: a password is required\n"), SudoRefused, "h1: sudo refused: .*password is req"),
        ((1, "sudo: unable to resolve host h1: x\nno such unit\n"), CommandFailed, "no such unit"),
        (
            (1, "dd: error writing: No space left on device\n"),
            CommandFailed,
            "true on h1.* No space|sudo on h1.*No space",
        ),
    ],
)
def test_what_stands_in_the_way_has_its_own_error(
    said: tuple[int, str], kind: type[Exception], told: str
) -> None:
    far: Any = Far(true=said)
    with pytest.raises(kind, match=told) as caught:
        far.root(sudo=True).run(("true",))
    assert type(caught.value) is kind


def test_a_disk_without_room_is_told_before_anything_is_written() -> None:
    class Full(Far):
        def run(self, argv: Sequence[str], *, timeout_s: float, stdin: str = "") -> str:
            super().run(argv, timeout_s=timeout_s, stdin=stdin)
            return "     Avail\n4096\n"

    with pytest.raises(NoRoom, match="h1: no room: 0 MB are free"):
        check_room(Full().root(), host="h1")


def test_nothing_is_asked_of_a_host_that_refuses_sudo() -> None:
    far = Far(true=(1, "sudo: a password is required\n"))
    with pytest.raises(SudoRefused):
        look(WantedHost(name="h1"), far.root(sudo=True))
    assert len(far.ran) == 1


def test_a_question_is_answered_whatever_its_exit_code() -> None:
    assert Far(cmp=(1, "differ")).root().ask(("cmp", "a", "b")) == "differ"


def test_changes_are_made_in_their_order_and_the_program_goes_over_standard_input() -> None:
    far, said = Far(), list[str]()
    wanted = [
        Change(what="install x", argv=("apt-get", "install", "x")),
        Change(what="put the program", program="abc"),
    ]
    make(wanted, far.root(), Program("abc", "ARCHIVE"), say=said.append)
    assert said == ["install x", "put the program"]
    assert [argv[0] for argv in far.ran] == ["apt-get", "python3"]
    assert far.read == ["", "ARCHIVE"]
