"""Proof of the operators' token by a fake agent, as docs/WIRE.md has it."""

from __future__ import annotations

import httpx

from messagebus.admin.proof import ASK, PROOF, answer_proof
from messagebus.secret import Secret


def proven(
    request: httpx.Request, answer: httpx.Response, *, broker: str, token: str = "operators"
) -> httpx.Response:
    """Return the answer, with the proof that the request asks for."""
    if ask := request.headers.get(ASK):
        answer.headers[PROOF] = answer_proof(
            Secret(token),
            ask=ask,
            method=request.method,
            target=request.url.raw_path.decode(),
            broker=broker,
            status=answer.status_code,
            etag=answer.headers.get("ETag", ""),
            body=answer.content,
        )
    return answer
