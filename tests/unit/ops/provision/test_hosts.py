from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from ops.errors import CommandFailed, HostKeyWrong, HostUnreachable, NoRoom, SudoRefused
from ops.provision.changes import Change
from ops.provision.hosts import Root, check_room, look, make
from ops.provision.program import Program
from ops.provision.wanted import WantedFile, WantedHost
from ops.run.shell import Remote

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
            "h1: its host key is not the known one: another machine may answer",
        ),
        (
            (127, "SSH: Server 'h1' not found in known_hosts"),
            HostKeyWrong,
            "h1: its host key is not known: another machine may answer",
        ),
        ((1, "sudo: a password is required\n"), SudoRefused, "h1: sudo refused: .*password is req"),
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
