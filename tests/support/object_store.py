"""S3 server of tests, moto's, that can answer 503, refuse credentials and lie in its listings."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped]
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

Answer = Iterable[bytes]
KEY, SECRET = "tests-key", "tests-secret-that-nobody-may-see"
SLOW_DOWN = (
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
FORBIDDEN = b"<Error><Code>InvalidAccessKeyId</Code><Message>No such key.</Message></Error>"
CONTENTS = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        pass


class ObjectStore:
    """The server. Bucket `forbidden` refuses every request; `lake` is there for tests.

    busy_every: each so many requests one is answered with 503; 0: none. lying: keys that fit this pattern are
    left out of listings, as many requests as lies says.
    """

    def __init__(self) -> None:
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._numbers = itertools.count(1)
        self.busy_every, self.busy, self.lies = 0, 0, 0
        self.lying: re.Pattern[bytes] | None = None
        self._server = make_server(
            "127.0.0.1", 0, self._answer, threaded=True, request_handler=_Quiet
        )
        self.address = f"http://127.0.0.1:{self._server.port}"

    @property
    def client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.address,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )

    @contextmanager
    def running(self) -> Iterator[ObjectStore]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            self.client.create_bucket(Bucket="lake")
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    def upload(self, folder: Path, prefix: str) -> None:
        client = self.client
        for path in folder.iterdir():
            client.upload_file(str(path), "lake", f"{prefix}/{path.name}")

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Answer:
        path = environ["PATH_INFO"]
        if path.startswith("/forbidden"):
            return self._refuse(start, "403 Forbidden", FORBIDDEN)
        if self.busy_every and next(self._numbers) % self.busy_every == 0:
            self.busy += 1
            return self._refuse(start, "503 Slow Down", SLOW_DOWN)
        if self.lying is None or self.lies < 1 or "list-type" not in environ["QUERY_STRING"]:
            answer: Answer = self._moto(environ, start)
            return answer
        return self._lie(environ, start, self.lying)

    @staticmethod
    def _refuse(start: Callable[..., Any], status: str, body: bytes) -> Answer:
        start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
        return [body]

    def _lie(
        self, environ: dict[str, Any], start: Callable[..., Any], hidden: re.Pattern[bytes]
    ) -> Answer:
        told: list[Any] = []
        whole = b"".join(self._moto(environ, lambda *given: told.append(given)))
        body = CONTENTS.sub(lambda each: b"" if hidden.search(each[0]) else each[0], whole)
        self.lies -= body != whole
        status, headers = told[0][:2]
        kept = [each for each in headers if each[0].lower() != "content-length"]
        start(status, [*kept, ("Content-Length", str(len(body)))])
        return [body]
