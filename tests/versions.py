"""Shares of the suite that run on other versions of the servers and of Python than this system's.

All come from root folders of other Debian releases (`ops.local.roots`): RabbitMQ and HAProxy for tests with
brokers, Python for the unit tests of modules that run inside applications. The newest brokers are tested
every time, one of the others in turn. Of the tests that a version changes least, one share runs in turn:
after some days all contract and fault tests but those of databases and Spark have run on each version.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ops.local import roots
from tests import tiers
from tests.support.examples import THOROUGH

CHECKOUT = Path(__file__).resolve().parents[1]
SITE_PACKAGES = CHECKOUT / ".venv/lib" / f"python3.{sys.version_info.minor}" / "site-packages"
NEWEST, OTHERS = "sid", ("trixie",)
# On other Pythons: unit tests of what runs in applications, and handlers, whose tasks are eager from 3.12 on.
UNIT = (
    *(f"tests/unit/{name}" for name in ("core", "_io", "services/agent", "testing", "worker")),
    "tests/contract/test_handling.py",
)
WITHOUT_BROKERS = ("-k", "not (contract and rabbitmq)")
# Tests of what RabbitMQ versions change first: rights, the gate, settling, counts, kinds of queues.
ALWAYS = (
    "tests/contract/test_faults.py",
    "tests/fault/test_confirmed_survives_a_kill.py",
    "tests/fault/test_moves.py::"
    "test_what_holds_up_a_move_is_named_and_holds_up_no_publish_and_no_other_subscription",
    "tests/fault/test_rights_and_names.py",
    "tests/fault/test_topics_reach_every_subscription.py::"
    "test_a_broker_back_before_its_agent_takes_no_publish_because_balancers_ask_for_the_gate",
)
# A share takes about so long. A file that takes longer is one by itself.
SHARE_S = 180
# Of the contract only one face runs on brokers (ON_BROKERS).
CONTRACT_PART = 1 / 3
# Their servers, and Spark, are the same beside each release.
OF_OTHER_SERVERS = {
    "tests/contract/test_stores.py",
    "tests/fault/test_live_source.py",
    "tests/fault/test_once_trial.py",
    "tests/fault/test_outbox.py",
    "tests/fault/test_stores_away.py",
}


def _in_shares(files: Sequence[str], seconds: Mapping[str, float]) -> list[tuple[str, ...]]:
    """Divide files, in their order. seconds: of each."""
    found, last_s = [list[str]()], 0.0
    for file in files:
        if found[-1] and last_s + seconds.get(file, 0.0) > SHARE_S:
            found.append([])
            last_s = 0.0
        found[-1].append(file)
        last_s += seconds.get(file, 0.0)
    return [tuple(each) for each in found]


SHARES = [
    ALWAYS,
    *_in_shares(
        [
            *(
                path
                for folder in ("contract", "fault")
                for file in sorted((CHECKOUT / "tests" / folder).glob("test_*.py"))
                if (path := str(file.relative_to(CHECKOUT))) not in OF_OTHER_SERVERS | {*ALWAYS}
            ),
            "tests/integration/test_balancer_haproxy.py",
        ],
        {
            file: took_s * (CONTRACT_PART if file.startswith("tests/contract/") else 1)
            for file, took_s in tiers.read_durations()["files"].items()
        },
    ),
]
# Blocking and asyncio clients are one driver below; the bus in memory has no version.
# A control shows what a test can see, whatever the release.
ON_BROKERS = ("-k", "not (contract and (memory or blocking-rabbitmq)) and not control")
# Compiled for one version of Python each; all else in .venv is good for any.
COMPILED = "cffi|hdrhistogram|hypothesis|markupsafe|pydantic-core|uvloop|wrapt"
PIP_WITHIN_S = 240


@dataclass(frozen=True, slots=True)
class Release:
    """Debian release, whose root folder is made at the first use."""

    name: str

    @property
    def root(self) -> Path:
        return roots.make(self.name, say=lambda line: print(line, flush=True))

    def on_its_brokers(self, pytest: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """Return command and environment of a pytest with this release's RabbitMQ and HAProxy."""
        root = self.root
        print(f"RabbitMQ of Debian's {self.name} is {roots.version(root)}", flush=True)
        return [sys.executable, *pytest], {**os.environ, roots.ENV_ROOT: str(root)}

    def on_its_python(self, pytest: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """Return those with this release's Python, and packages from .venv where they are not compiled."""
        packages = self._packages()
        path = ":".join(map(str, (packages, CHECKOUT, SITE_PACKAGES)))
        # What another Python breaks, it breaks in few examples.
        kept = {name: value for name, value in os.environ.items() if name != THOROUGH}
        environ = {**kept, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        return roots.chrooted(self.root, CHECKOUT, ["/usr/bin/python3", *pytest]), environ

    def _packages(self) -> Path:
        """Return the folder of the compiled packages of requirements.lock for its Python."""
        (python,) = (self.root / "usr/lib").glob("python3.*")
        entries = re.split(r"\n(?=\S)", (CHECKOUT / "requirements.lock").read_text())
        pinned = "\n".join(each for each in entries if re.match(rf"({COMPILED})==", each))
        digest = hashlib.sha256(pinned.encode()).hexdigest()[:12]
        folder = CHECKOUT / ".cache" / "python" / f"{python.name}-{digest}"
        if not (folder / "complete").exists():
            folder.mkdir(parents=True, exist_ok=True)
            lock = folder / "compiled.lock"
            lock.write_text(pinned)
            pip = [sys.executable, "-m", "pip", "--quiet", "--no-input", "install", "--upgrade"]
            what = ["--no-deps", "--only-binary=:all:", "--require-hashes", "-r", str(lock)]
            where = [
                "--python-version",
                python.name.removeprefix("python"),
                "--target",
                str(folder),
            ]
            subprocess.run([*pip, *what, *where], check=True, timeout=PIP_WITHIN_S)
            (folder / "complete").touch()
        return folder


@dataclass(frozen=True, slots=True)
class Share:
    """Part of the suite that runs on a release, on its Python or else on its brokers."""

    release: Release
    paths: tuple[str, ...]
    python: bool = False

    @property
    def name(self) -> str:
        return f"{self.release.name}-{'python' if self.python else 'brokers'}"

    def command(self, pytest: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """Return argv and environment. Raises OpsError, OSError or SubprocessError without the release."""
        if self.python:
            return self.release.on_its_python([*pytest, *WITHOUT_BROKERS])
        return self.release.on_its_brokers([*pytest, *ON_BROKERS])


def shares(day: int = 0) -> list[Share]:
    """Return the shares of one day, counted from 1970; 0 for today.

    The newest release has ALWAYS each day. Releases have a share of the rest, and the unit tests, by turns.
    """
    day = day or tiers.today()
    names = (NEWEST, *OTHERS)
    turn, name = SHARES[day // len(names) % len(SHARES)], names[day % len(names)]
    always = tuple(path for path in ALWAYS if name != NEWEST or path.partition("::")[0] not in turn)
    newest = (*always, *turn) if name == NEWEST else always
    return [
        Share(Release(NEWEST), tuple(dict.fromkeys(newest))),
        *([] if name == NEWEST else [Share(Release(name), turn)]),
        Share(Release(name), UNIT, python=True),
    ]
