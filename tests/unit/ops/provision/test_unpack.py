from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ops.provision.program import pack
from ops.provision.unpack import unpack


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
