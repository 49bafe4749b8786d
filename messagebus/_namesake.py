"""Check for another project's distribution `messagebus`: each of the two overwrites files of the other."""

from __future__ import annotations

import functools
from importlib.metadata import PackageNotFoundError, metadata

__all__ = ["namesake"]

OURS = "messagebus-rabbitmq"
# The summary of an editable installation that was made before the distribution had its name.
SUMMARY = "Publish to any RabbitMQ broker, consume from all of them."


@functools.cache
def namesake() -> str:
    """Return one line that says that it is installed here and what to do; "" where it is not."""
    try:
        found = metadata("messagebus")
    except PackageNotFoundError:
        return ""
    if found["Summary"] == SUMMARY:
        return ""
    return (
        f"another project's distribution 'messagebus' {found['Version']} is installed here and has files of "
        f"the same names: pip uninstall messagebus {OURS}, then pip install {OURS}"
    )
