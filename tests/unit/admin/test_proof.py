"""The operators' token is proved and not sent; with a whole agent in the tests of its routes."""

from __future__ import annotations

import hashlib
import hmac
import time

import httpx
import pytest

from messagebus.admin.proof import ASK, Challenges, NotProven, TokenProof, answer_proof
from messagebus.secret import Secret
from tests.support.proving import proven

TOKEN = Secret("operators")
ASKED = "0123456789abcdef"


def test_the_vector_of_the_wire_format() -> None:
    signed = b"".join(
        b"%d:%s" % (len(part), part)
        for part in (b"answer", ASKED.encode(), b"GET", b"/topology", b"a:5672", b"200", b"", b"{}")
    )
    wanted = hmac.new(b"operators", signed, hashlib.sha256).hexdigest()
    assert wanted == "d90452fafa9e4705bc312292e0460514a1c4b7edd163ca414e6d9a194801b9a5"
    found = answer_proof(
        TOKEN,
        ask=ASKED,
        method="GET",
        target="/topology",
        broker="a:5672",
        status=200,
        etag="",
        body=b"{}",
    )
    assert found == f'MB-Proof broker="a:5672", proof="{wanted}"'


def test_a_nonce_is_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    challenges = Challenges(lambda: TOKEN)
    first = challenges.nonce
    assert challenges.nonce == first
    now_s[0] += 61
    second = challenges.nonce
    assert set(challenges._nonces) == {first, second}
    assert first != second
    now_s[0] += 61
    assert first not in (challenges.nonce, *challenges._nonces)
    now_s[0] += 121
    assert len({challenges.nonce, *challenges._nonces}) == 1


def old(asked: list[str]) -> httpx.MockTransport:
    """Answer as an agent of an earlier version."""

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers.get("Authorization", ""))
        good = asked[-1] == "Bearer operators"
        return httpx.Response(200 if good else 401, headers={"WWW-Authenticate": "Bearer"})

    return httpx.MockTransport(answer)


def test_the_token_is_sent_with_tls_or_where_it_is_said_in_so_many_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    with httpx.Client(transport=old(asked), auth=TokenProof(lambda: TOKEN)) as http:
        with pytest.raises(NotProven, match="MESSAGEBUS_TOKEN_IN_CLEAR=1"):
            http.post("http://a/drain")
        assert asked == [""]
        assert http.post("https://a/drain").status_code == 200
        monkeypatch.setenv("MESSAGEBUS_TOKEN_IN_CLEAR", "1")
        assert http.post("http://a/drain").status_code == 200


def test_an_answer_is_proved_for_one_request_of_one_agent() -> None:
    kept: list[httpx.Response] = []

    def answer(request: httpx.Request) -> httpx.Response:
        assert ASK in request.headers
        kept.append(proven(request, httpx.Response(200, text="a"), broker="a:1"))
        return kept[0]

    auth = TokenProof(lambda: TOKEN, to="a:1", signs=False)
    with httpx.Client(transport=httpx.MockTransport(answer)) as http:
        assert http.get("http://a/x", auth=auth).text == "a"
        with pytest.raises(NotProven, match="does not have"):
            http.get("http://a/x", auth=auth)
        kept.clear()
        with pytest.raises(NotProven, match="the agent of a:1 answers"):
            http.get("http://a/x", auth=TokenProof(lambda: TOKEN, to="b:1", signs=False))
