"""Forms of the values in an inventory, as types that pydantic validates.

Imported with the first inventory that is read: a command's help need not wait for pydantic.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    StringConstraints,
    ValidationInfo,
)

from inventory.tables import ROLES, Address
from messagebus.broker import Broker
from messagebus.secret import Secret

COUNT_MAX = 10_000_000
DEVICE = "/dev/[A-Za-z0-9_./-]{1,200}"


def _address(value: object) -> Address:
    text = _string(value)
    if ":" not in text.rpartition("]")[2]:
        raise ValueError(f"no port in {text!r}")
    broker = Broker.parse(text)
    return Address(broker.host, broker.port)


def _path(value: object, info: ValidationInfo[Any]) -> Path:
    """Return a path; a relative one starts at the folder in the context."""
    text = _string(value)
    if not text or any(ord(char) < 32 for char in text):
        raise ValueError(f"{text!r} is not a path")
    return Path(info.context["base"] / text)


def _path_on_host(value: object, info: ValidationInfo[Any]) -> Path:
    path = _path(value, info)
    if info.data.get("host") and not str(value).startswith("/"):
        raise ValueError(f"{value!r} is on another host: it must be an absolute path")
    return path


def _device(value: object) -> Path:
    text = _string(value)
    if not re.fullmatch(DEVICE, text):
        raise ValueError(f"{text!r} is not of the form {DEVICE}")
    return Path(text)


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected string, not {type(value).__name__}")
    return value


def _two_different(value: object) -> object:
    if isinstance(value, list) and (len(value) != 2 or value[0] == value[1]):
        raise ValueError(f"{value!r}; two different hosts are required")
    return value


def _one_of(*allowed: str) -> Callable[[object], str]:
    def check(value: object) -> str:
        if value not in allowed:
            raise ValueError(f"{value!r}; allowed: {', '.join(allowed)}")
        return str(value)

    return check


def _not_in_file(_value: object) -> Any:
    raise ValueError("unknown key")


def _form(pattern: str) -> StringConstraints:
    return StringConstraints(pattern=f"^(?:{pattern})$")


Name = Annotated[str, _form("[A-Za-z0-9][A-Za-z0-9_-]{0,62}")]
"""Name of a broker, host or balancer."""
UserName = Annotated[str, _form("[!-~]{1,128}")]
HostName = Annotated[str, _form("[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")]
ClusterName = Annotated[str, _form("[A-Za-z0-9][A-Za-z0-9._-]{0,63}")]
Ssh = Annotated[
    str,
    _form("([A-Za-z0-9_][A-Za-z0-9_.-]{0,31}@)?[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}(:[0-9]{1,5})?"),
]
Ip = Annotated[str, _form("[0-9a-fA-F.:]{2,45}")]
IpOnNetwork = Annotated[str, _form("[0-9a-fA-F.:]{2,45}/[0-9]{1,3}")]
Interface = Annotated[str, _form("[A-Za-z0-9_.-]{1,15}")]
VrrpId = Annotated[int, Field(strict=True, ge=1, le=255)]
Version = Annotated[str, _form("[A-Za-z0-9.+:~-]{1,100}")]
Program = Annotated[str, _form("/[A-Za-z0-9_./-]{1,200}")]
Rate = Annotated[str, _form("[1-9][0-9]{0,5}[KMG]?")]
Device = Annotated[Path, PlainValidator(_device)]
Count = Annotated[int, Field(strict=True, ge=1, le=COUNT_MAX)]
Seconds = Annotated[float, Field(strict=True, ge=0.001, le=COUNT_MAX)]
Flag = Annotated[bool, Field(strict=True)]
YesNo = Annotated[bool, PlainValidator(lambda value: _one_of("no", "yes")(value) == "yes")]
Endpoint = Annotated[Address, PlainValidator(_address)]
OptionalEndpoint = Annotated[Address | None, PlainValidator(_address)]
FilePath = Annotated[Path, PlainValidator(_path)]
PathOnHost = Annotated[Path, PlainValidator(_path_on_host)]
NOT_IN_FILE = PlainValidator(_not_in_file)
Role = Annotated[str, AfterValidator(_one_of(*ROLES))]
TwoHosts = Annotated[tuple[Name, Name], BeforeValidator(_two_different)]
NoSecret = Annotated[Secret | None, NOT_IN_FILE]
NoDigest = Annotated[str, NOT_IN_FILE]
