"""The archive for ``spark-submit --py-files``: what executors need of this project, and nothing else.

    python -m spark pack --out messagebus-spark.zip

Pure Python: this kit, the library, and the packages below, as they are installed here. Executors bring
Python, PySpark and PyArrow.
"""

from __future__ import annotations

import importlib.util
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import click

from messagebus.commands.exits import HELP

PACKAGES = (
    *("spark", "reports", "messagebus"),
    *("pika", "httpx", "httpcore", "h11", "anyio", "idna", "sniffio", "certifi", "click"),
    "typing_extensions",
)
# Of the library, what no row of a run passes through.
LEFT_OUT = tuple(f"messagebus/{name}" for name in ("integrations", "services", "tools"))
# The time of every file inside, so that two archives of one checkout are equal.
STAMP = (2020, 1, 1, 0, 0, 0)


def pack(target: Path) -> int:
    """Write the archive, in place of an earlier one. Returns its size in bytes."""
    candidate = target.with_name(f".{target.name}.{os.getpid()}")
    with zipfile.ZipFile(candidate, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in PACKAGES:
            for path, inside in _files(name):
                archive.writestr(_entry(inside), path.read_bytes())
    candidate.replace(target)
    return target.stat().st_size


def _entry(inside: str) -> zipfile.ZipInfo:
    made = zipfile.ZipInfo(inside, STAMP)
    made.compress_type = zipfile.ZIP_DEFLATED
    made.external_attr = 0o644 << 16
    return made


def _files(name: str) -> Iterator[tuple[Path, str]]:
    found = importlib.util.find_spec(name)
    assert found is not None, name
    assert found.origin is not None, name
    origin = Path(found.origin)
    if found.submodule_search_locations is None:
        yield origin, origin.name
        return
    root = origin.parent
    for path in sorted(root.rglob("*")):
        inside = str(path.relative_to(root.parent))
        if "__pycache__" in path.parts or path.suffix == ".so" or inside.startswith(LEFT_OUT):
            continue
        if path.is_file():
            yield path, inside


@click.command(
    "pack",
    epilog="Example: python -m spark pack --out messagebus-spark.zip",
    context_settings=HELP,
    short_help="Pack what executors need, for --py-files.",
)
@click.option(
    "--out", required=True, type=click.Path(path_type=Path, dir_okay=False), help="The archive."
)
def command(out: Path) -> int:
    """Pack what executors need of this project, for spark-submit --py-files."""
    size = pack(out)
    click.echo(f"{out}: {size / 1e6:.1f} MB")
    return 0
