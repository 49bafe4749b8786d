"""Codecs for `App(codecs=[...])`: msgspec, protobuf, Avro with a schema registry, CloudEvents.

Each codec reads and writes its own types and leaves all others to the codecs after it, and to
`messagebus.payloads`. A body that cannot be read raises WrongPayload, so the delivery is parked. A schema
registry that does not answer raises `RegistryUnavailable`, so the run is repeated according to its policy.
"""

from __future__ import annotations

import dataclasses
import io
import json
import struct
import threading
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from messagebus import Delivery, Message, MessageBusError, MessageInvalid, WrongPayload
from messagebus.errors import PAGE
from messagebus.integrations import cloudevents
from messagebus.payloads import Reader

__all__ = ["Avro", "CloudEvents", "Msgspec", "Protobuf", "Registry", "RegistryUnavailable"]

JSON, MSGPACK = "application/json", "application/msgpack"
PROTOBUF, AVRO = "application/x-protobuf", "application/vnd.confluent.avro"
# Of the registry's wire format: a zero, and the schema's number.
_HEAD = struct.Struct(">bI")
REGISTRY_TIMEOUT_S = 2.0
SCHEMAS_MAX = 10_000
# Error codes of the registry's API: there is no such schema; it is not compatible, or none at all.
NO_SCHEMA, NOT_COMPATIBLE, NO_AVRO = 40403, 409, 42201


class RegistryUnavailable(MessageBusError):
    """Raised when the schema registry does not answer, or answers with its own error; repeat the call."""

    docs = f"{PAGE}#registryunavailable"


def _read(body: Callable[[Delivery], Any], faults: tuple[type[Exception], ...]) -> Reader:
    def read(delivery: Delivery) -> Any:
        try:
            return body(delivery)
        except faults as fault:
            # Only its class: the text may quote the payload.
            raise WrongPayload(f"cannot be read: {type(fault).__name__}") from fault

    return read


def _media(delivery: Delivery) -> str:
    return delivery.content_type.partition(";")[0].strip().lower()


class Msgspec:
    """Structs of msgspec, as JSON or MessagePack. content_type: of what is published; both are read."""

    def __init__(self, content_type: str = JSON) -> None:
        import msgspec

        self._msgspec, self._content_type = msgspec, content_type
        writers = {JSON: msgspec.json.encode, MSGPACK: msgspec.msgpack.encode}
        if content_type not in writers:
            raise ValueError(f"content_type {content_type!r}: {' or '.join(writers)}")
        self._encode = writers[content_type]

    def reader(self, annotation: Any) -> Reader | None:
        """Return how payloads of this annotation are read; None: they are not of this codec."""
        if not (isinstance(annotation, type) and issubclass(annotation, self._msgspec.Struct)):
            return None
        packed = self._msgspec.msgpack.Decoder(annotation).decode
        text = self._msgspec.json.Decoder(annotation).decode

        def body(delivery: Delivery) -> Any:
            return (packed if _media(delivery) == MSGPACK else text)(delivery.body)

        return _read(body, (self._msgspec.DecodeError,))

    def message(self, value: Any) -> Message | None:
        """Return the message of a value; None: it is not of this codec. Raises MessageInvalid."""
        if not isinstance(value, self._msgspec.Struct):
            return None
        return Message(body=self._encode(value), content_type=self._content_type)


class Protobuf:
    """Messages of protobuf; the type's full name travels as the message's `type`."""

    def __init__(self) -> None:
        from google.protobuf.message import DecodeError
        from google.protobuf.message import Message as Proto

        self._kind, self._fault = Proto, DecodeError

    def reader(self, annotation: Any) -> Reader | None:
        """Return how payloads of this annotation are read; None: they are not of this codec."""
        if not (isinstance(annotation, type) and issubclass(annotation, self._kind)):
            return None
        name = annotation.DESCRIPTOR.full_name

        def body(delivery: Delivery) -> Any:
            if (said := delivery.message.type) not in ("", name):
                raise WrongPayload(f"a message of type {said!r}: {name} wanted")
            return annotation.FromString(delivery.body)

        return _read(body, (self._fault,))

    def message(self, value: Any) -> Message | None:
        """Return the message of a value; None: it is not of this codec. Raises MessageInvalid."""
        if not isinstance(value, self._kind):
            return None
        name = value.DESCRIPTOR.full_name
        return Message(body=value.SerializeToString(), content_type=PROTOBUF, type=name)


class Registry:
    """Client of a schema registry with Confluent's API, which Apicurio and Karapace have, too.

    url: the root of the registry. timeout_s: limit of one request, in seconds. Answers are cached without
    limit of time, because the number of a schema is permanent. Thread: any. A new schema is fetched where the
    message is read; this blocks an event loop for the time of the request.
    """

    def __init__(
        self, url: str, *, timeout_s: float = REGISTRY_TIMEOUT_S, client: Any = None
    ) -> None:
        import httpx

        self._http = client or httpx.Client(base_url=url, timeout=timeout_s)
        self._fault = httpx.HTTPError
        self._schemas: dict[int, Any] = {}
        self._ids: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    def schema(self, number: int) -> Any:
        """Return a schema, decoded. Raises RegistryUnavailable, or WrongPayload for an unknown number."""
        found = self._schemas.get(number)
        if found is None:
            code, answer = self._ask("GET", f"/schemas/ids/{number}")
            if code == NO_SCHEMA:
                raise WrongPayload(f"the registry has no schema {number}")
            try:
                found = json.loads(answer["schema"])
            except (KeyError, TypeError, ValueError):
                raise RegistryUnavailable(f"the schema registry answers {code}") from None
            with self._lock:
                if len(self._schemas) >= SCHEMAS_MAX:
                    self._schemas.pop(next(iter(self._schemas)))
                self._schemas[number] = found
        return found

    def register(self, subject: str, schema: Any) -> int:
        """Return the number of a schema under a subject; register it if it is new there.

        Raises RegistryUnavailable, or MessageInvalid if the registry refuses the schema.
        """
        text = json.dumps(schema)
        found = self._ids.get((subject, text))
        if found is None:
            path = f"/subjects/{quote(subject, safe='')}/versions"
            code, answer = self._ask("POST", path, {"schema": text})
            if code in (NOT_COMPATIBLE, NO_AVRO):
                raise MessageInvalid(f"the registry refuses the schema of {subject}: {code}")
            try:
                found = self._ids[subject, text] = int(answer["id"])
            except (KeyError, TypeError, ValueError):
                raise RegistryUnavailable(f"the schema registry answers {code}") from None
        return found

    def _ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return the status, or the API's own error code, and the answer. Raises RegistryUnavailable."""
        try:
            answer = self._http.request(method, path, json=body)
            found = answer.json()
        except (self._fault, ValueError) as fault:
            raise RegistryUnavailable(f"the schema registry: {type(fault).__name__}") from fault
        code = found.get("error_code") if isinstance(found, dict) else None
        return code if isinstance(code, int) else answer.status_code, found


class Avro:
    """Dataclasses and dictionaries as Avro, with the registry's header of five bytes.

    schemas: type -> its schema. The schema of the writer is fetched from the registry and resolved to that of
    the reader. subject: function of a type; default: the full name of its schema (Confluent's
    RecordNameStrategy).
    """

    def __init__(
        self,
        registry: Registry,
        schemas: Mapping[type, Any],
        *,
        subject: Callable[[Any], str] | None = None,
    ) -> None:
        import fastavro

        self._avro, self._registry = fastavro, registry
        self._schemas = {kind: fastavro.parse_schema(each) for kind, each in schemas.items()}
        self._plain = dict(schemas)
        self._subject = subject or _full_name

    def reader(self, annotation: Any) -> Reader | None:
        """Return how payloads of this annotation are read; None: they are not of this codec."""
        wanted = self._schemas.get(annotation) if isinstance(annotation, type) else None
        if wanted is None:
            return None

        def body(delivery: Delivery) -> Any:
            zero, number = _HEAD.unpack_from(delivery.body)
            if zero:
                raise WrongPayload("not of the registry's format: the first byte is not 0")
            data = io.BytesIO(delivery.body[_HEAD.size :])
            found = self._avro.schemaless_reader(data, self._registry.schema(number), wanted)
            return annotation(**found)

        faults = (struct.error, EOFError, ValueError, TypeError, IndexError, KeyError)
        return _read(body, (*faults, self._avro.read.SchemaResolutionError))

    def message(self, value: Any) -> Message | None:
        """Return the message of a value; None: it is not of this codec. Raises MessageInvalid."""
        schema = self._schemas.get(type(value))
        if schema is None:
            return None
        plain = self._plain[type(value)]
        out = io.BytesIO()
        out.write(_HEAD.pack(0, self._registry.register(self._subject(plain), plain)))
        fields: Any = value
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = dataclasses.asdict(value)
        try:
            self._avro.schemaless_writer(out, schema, fields)
        except (ValueError, TypeError, KeyError) as fault:
            raise MessageInvalid(f"{type(value).__name__} is not of its schema: {fault}") from fault
        return Message(body=out.getvalue(), content_type=AVRO)


def _full_name(schema: Any) -> str:
    space = schema.get("namespace", "")
    return f"{space}.{schema['name']}" if space else str(schema["name"])


class CloudEvents:
    """Values of the CloudEvents SDK: `cloudevents.core.v1.event.CloudEvent`.

    Published in the binary mode of the AMQP binding. Read are such messages, those in structured mode, and
    plain messages, which get the attributes that an event needs.
    """

    def __init__(self) -> None:
        from cloudevents.core.exceptions import BaseCloudEventException
        from cloudevents.core.v1.event import CloudEvent

        self._kind, self._fault = CloudEvent, BaseCloudEventException

    def reader(self, annotation: Any) -> Reader | None:
        """Return how payloads of this annotation are read; None: they are not of this codec."""
        faults = (ValueError, RecursionError, MessageInvalid, self._fault)
        return _read(self._event, faults) if annotation is self._kind else None

    def _event(self, delivery: Delivery) -> Any:
        if _media(delivery) == cloudevents.STRUCTURED:
            found = json.loads(delivery.body)
            cloudevents.of_json(found)  # raises
        else:
            found = cloudevents.as_event(delivery)
        data = found.pop("data", None)
        encoded = found.pop("data_base64", None)
        if encoded is not None:
            import base64

            data = base64.b64decode(encoded)
        if isinstance(found.get("time"), str):
            from datetime import datetime

            found["time"] = datetime.fromisoformat(found["time"])
        return self._kind(found, data)

    def message(self, value: Any) -> Message | None:
        """Return the message of a value; None: it is not of this codec. Raises MessageInvalid."""
        if not isinstance(value, self._kind):
            return None
        event: dict[str, Any] = {
            name: each.isoformat() if hasattr(each, "isoformat") else each
            for name, each in value.get_attributes().items()
        }
        data = value.get_data()
        if not isinstance(data, bytes):
            return cloudevents.of_json(event | {"data": data})
        plain = cloudevents.of_json({n: e for n, e in event.items() if n != "datacontenttype"})
        kind = event.get("datacontenttype", "")
        return dataclasses.replace(plain, body=data, content_type=kind)
