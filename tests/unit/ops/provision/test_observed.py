from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ops.provision.observed import Observed, observe
from ops.provision.wanted import WantedFile, WantedHost

FILE, FOLDER = Path("/etc/a b"), Path("/var/lib/messagebus")
WANTED = WantedHost(
    name="h1",
    packages={"rabbitmq-server": "", "chrony": ""},
    users={"messagebus": "rabbitmq"},
    folders={FOLDER: "messagebus:messagebus"},
    files=(WantedFile(path=FILE, text="x"),),
    units=("chrony", "rabbitmq-server"),
)
DIGEST = WANTED.files[0].digest


def observed(answers: dict[str, str]) -> Observed:
    def ask(argv: Sequence[str]) -> str:
        line = " ".join(argv)
        return next((said for part, said in answers.items() if part in line), "")

    return observe(WANTED, ask, cookie_copy=Path("/copy"))


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
