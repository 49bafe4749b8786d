"""`ops/local/install.sh`: what it would install for which words, with stand-ins for Python, apt and sudo."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ops.commands.kits import CHECKOUT

PYTHON = """\
#!/bin/sh
echo "$@" >> "$LOG"
case "$*" in
    "-m venv .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    "-m ops.locked "*) echo "library==1" ;;
    *sysconfig*) echo . ;;
esac
"""
# No way to root, and no package that is installed.
STAND_INS = {"python3": PYTHON, "id": "#!/bin/sh\necho 1000\n", "sudo": "#!/bin/sh\nexit 1\n"}


class Checkout:
    """A folder with the script, a lock and stand-ins. asked: what its Pythons were asked to do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "ops/local").mkdir(parents=True)
        shutil.copy(CHECKOUT / "ops/local/install.sh", folder / "ops/local")
        for name in ("requirements.lock", "pyproject.toml"):
            (folder / name).write_text("")
        for name, text in {**STAND_INS, "dpkg-query": STAND_INS["sudo"]}.items():
            self.program(f"bin/{name}", text)
        self._log = folder / "log"

    def program(self, name: str, text: str = "#!/bin/sh\n") -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def install(
        self, *words: str, root: str = "/nowhere", before: str = ""
    ) -> subprocess.CompletedProcess[str]:
        self._log.write_text("")
        path = f"{before}{self.folder / 'bin'}:{os.environ['PATH']}"
        given = {"PATH": path, "LOG": str(self._log), "MESSAGEBUS_LOCAL_ROOT": root}
        return subprocess.run(
            [self.folder / "ops/local/install.sh", *words],
            env={**os.environ, **given},
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def locked(self) -> list[str]:
        """The parts of the lock that were installed by the last call."""
        lines = self._log.read_text().splitlines()
        return [line.split()[-1] for line in lines if line.startswith("-m ops.locked")]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_wheels_need_a_python_and_nothing_else(checkout: Checkout) -> None:
    done = checkout.install("build")
    assert (done.returncode, checkout.locked) == (0, ["build"])
    assert "build: 1 Python packages" in done.stdout


def test_a_part_is_added_to_those_that_are_there(checkout: Checkout) -> None:
    checkout.install("build")
    assert checkout.install("python").returncode == 0
    assert checkout.locked == ["build", "python"]
    for there in ("python", "ops", "build"):
        done = checkout.install(there)
        assert (done.stdout + done.stderr, checkout.locked) == ("", []), there
    checkout.install("spark")
    assert checkout.locked == ["build", "spark"]


def test_an_activated_environment_does_not_hide_the_system(checkout: Checkout) -> None:
    checkout.install("ops")
    for name in ("python3", "python3.11", "python3.12", "python3.13", "python3.14"):
        checkout.program(f".venv/bin/{name}", PYTHON)
    bin = checkout.folder / ".venv/bin"
    done = checkout.install("ops", before=f"{bin}:")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_another_lock_begins_anew(checkout: Checkout) -> None:
    checkout.install("python")
    (checkout.folder / "requirements.lock").write_text("library==2")
    checkout.install("ops")
    assert checkout.locked == ["build", "ops"]


def test_without_root_one_line_says_what_to_ask_for_and_nothing_is_done(checkout: Checkout) -> None:
    checkout.program("bin/apt-get", STAND_INS["sudo"])
    done = checkout.install("ops", "brokers", "maven")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "apt-get install --no-install-recommends rabbitmq-server haproxy maven" in line
    assert (done.stdout, checkout.locked) == ("", [])
    assert not (checkout.folder / ".venv").exists()


def test_programs_of_a_root_folder_need_not_be_installed(
    checkout: Checkout, tmp_path: Path
) -> None:
    for program in ("usr/lib/rabbitmq/bin/rabbitmq-server", "usr/sbin/haproxy"):
        checkout.program(f"root/{program}")
    done = checkout.install("brokers", root=str(tmp_path / "root"))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_failure_shows_the_end_of_what_was_written_and_is_tried_anew(checkout: Checkout) -> None:
    broken = PYTHON.replace(
        "    *sysconfig", '    "-m pip"*) echo "no such hash"; exit 1 ;;\n    *sysconfig'
    )
    checkout.program("bin/python3", broken)
    done = checkout.install("build")
    assert done.returncode
    assert "no such hash" in done.stderr
    checkout.program("bin/python3", PYTHON)
    assert checkout.install("build").returncode == 0
    assert checkout.locked == ["build"]
