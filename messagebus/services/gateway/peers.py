"""Answers to leases that another gateway holds: one hop, by the caller's own login.

Only the gateway that handed a delivery out has the link for its answer. A lease begins with that gateway's
name. The caller's `Authorization` goes along, so the other one decides as if it had been asked itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

AWAY = "away"
"""Answer for a lease whose gateway does not answer: the delivery comes again when the lease runs out."""
FORWARDED = "mb-forwarded"
TIMEOUT_S = 2.0
# Waits of its own: `ack?confirmed=true` waits for brokers, and copies for their confirms.
ANSWER_S = 15.0


class Peers:
    """The other gateways. urls: of each, by its name."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self._urls = dict(urls)
        self._http: httpx.AsyncClient | None = None  # made by the first lease of another one

    def of(self, token: str) -> str:
        """Return the name of the other gateway that holds it; "" for none that is known."""
        name = token.partition(".")[0]
        return name if name in self._urls else ""

    async def answer(
        self, peer: str, path: str, tokens: Sequence[str], how: Mapping[str, Any], login: str
    ) -> list[str]:
        """Have a gateway answer its leases. Returns the end of each, in order.

        path: of the request, with its query. how: its other members. login: its `Authorization`.
        """
        if self._http is None:
            timeout = httpx.Timeout(ANSWER_S, connect=TIMEOUT_S)
            self._http = httpx.AsyncClient(timeout=timeout, trust_env=False)
        headers = {FORWARDED: "1"} | ({"authorization": login} if login else {})
        try:
            answer = await self._http.post(
                self._urls[peer].rstrip("/") + path,
                json={**how, "leases": list(tokens)},
                headers=headers,
            )
            if answer.status_code not in (200, 409):
                return [AWAY] * len(tokens)
            ends = [str(each["answer"]) for each in answer.json()["leases"]]
        except (httpx.HTTPError, ValueError, LookupError, TypeError):
            return [AWAY] * len(tokens)
        return ends if len(ends) == len(tokens) else [AWAY] * len(tokens)

    async def close(self) -> None:
        if self._http is not None:
            await asyncio.shield(self._http.aclose())
