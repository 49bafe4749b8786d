from __future__ import annotations

import base64
import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from ops.errors import OpsError
from ops.provision import program
from ops.provision.program import Program, pack, unpack_command
from ops.provision.unpack import unpack


@pytest.fixture(scope="module")
def packed() -> Program:
    return pack()


def test_the_same_files_have_the_same_digest(packed: Program) -> None:
    assert pack().digest == packed.digest


def test_all_that_the_agent_needs_is_in_it_and_nothing_of_the_kits(packed: Program) -> None:
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(packed.text))) as tar:
        folders = {Path(name).parts[0] for name in tar.getnames()}
    assert {"messagebus", "pika", "httpx", "httpcore", "starlette", "uvicorn"} <= folders
    assert not folders & {"ops", "lb", "inventory", "tests", "fabric", ".."}


def test_a_library_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_name", lambda _text: "no-such-library")
    with pytest.raises(OpsError, match="no-such-library is needed"):
        pack()


def test_the_archive_is_in_no_argv(packed: Program) -> None:
    assert all(len(word) < 5_000 for word in unpack_command(packed))
    assert unpack_command(packed)[-2:] == ("/opt/messagebus", packed.digest)


def test_what_was_packed_runs_where_nothing_is_installed(tmp_path: Path) -> None:
    program = pack()
    unpack(tmp_path, "before", program.text)
    (tmp_path / f"{program.digest}.part").mkdir()  # of a run that was ended
    for _ in range(2):
        unpack(tmp_path, program.digest, program.text)
    assert (tmp_path / "current").readlink() == Path(program.digest)
    helped = subprocess.run(
        [sys.executable, "-S", "-P", "-m", "messagebus", "agent", "--help"],
        cwd="/",
        env={"PYTHONPATH": str(tmp_path / "current")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--config" in helped.stdout
