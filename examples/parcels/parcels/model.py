"""Bodies of requests and of messages."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, StringConstraints

__all__ = ["Name", "Scan", "Scanned"]

Name = Annotated[str, StringConstraints(pattern=r"^[\w-]{1,64}$")]


class Scan(BaseModel):
    """A scan of a parcel. id: given by the scanner, which sends the scan again until it is accepted."""

    id: UUID
    depot: Name
    at: AwareDatetime


class Scanned(Scan):
    """The message of a scan."""

    parcel: Name
