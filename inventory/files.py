"""Files as every kit makes them: rendered from templates, and written whole."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jinja2

SECRET_MODE, OPEN_MODE = 0o600, 0o644


def write_whole(path: Path, text: str, *, mode: int | None = SECRET_MODE) -> None:
    """Replace a file: a reader sees the old or the new text, and a power-off loses neither.

    The file has its mode before it has its text. mode: None for that of the old file, OPEN_MODE without one.
    Makes missing folders. A failed write leaves the old file, and nothing else.
    Raises OSError, which names the file.
    """
    if mode is None:
        mode = path.stat().st_mode & 0o777 if path.exists() else OPEN_MODE
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", newline="") as file:
            os.fchmod(descriptor, mode)
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        Path(name).replace(path)
    except BaseException as fault:
        Path(name).unlink(missing_ok=True)
        if isinstance(fault, OSError) and fault.errno and not fault.filename:  # a full disk
            raise OSError(fault.errno, fault.strerror, str(path)) from fault
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class Templates:
    """Templates of a package's folder. filters: those that they may use, by name."""

    def __init__(self, package: str, **filters: Callable[..., str]) -> None:
        self._package, self.filters = package, filters

    def render(self, name: str, words: Mapping[str, object]) -> str:
        """Fill in a template. A word that it needs and is not given is an error."""
        return self._environment.get_template(name).render(words)

    @cached_property
    def _environment(self) -> jinja2.Environment:
        import jinja2  # commands that render nothing need not wait for it

        environment = jinja2.Environment(
            loader=jinja2.PackageLoader(self._package),
            undefined=jinja2.StrictUndefined,
            autoescape=False,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        environment.filters.update(self.filters)
        return environment
