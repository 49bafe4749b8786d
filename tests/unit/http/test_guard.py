"""Requests that a page of another site has its reader's browser send."""

from __future__ import annotations

import pytest

from messagebus.http.guard import Guard, Sender, is_public_url

PUBLIC = "https://bus.example"


@pytest.mark.parametrize(
    "host",
    [
        *(
            "127.0.0.1",
            "127.0.0.1:8085",
            "127.9.9.9",
            "localhost",
            "localhost:80",
            "[::1]",
            "[::1]:8085",
        ),
        *("LOCALHOST", "localhost."),
    ],
)
def test_an_open_service_is_called_by_a_loopback_address(host: str) -> None:
    assert Guard(is_open=True).is_host(host)


@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.example",
            "127.evil.example",
            "127.0.0.1.evil.example:8085",
            "localhost.evil.example",
        ),
        *(
            "10.0.0.1",
            "[2001:db8::1]",
            "",
            ":80",
            "127.1",
            "0x7f.1",
            "[::1",
            "a@localhost.evil",
            "bus.example",
        ),
        *("127.0.0.1@evil.example", "0.0.0.0", "2130706433", "bus.example"),
    ],
)
def test_no_other_name_leads_to_an_open_service(host: str) -> None:
    assert not Guard(is_open=True).is_host(host)


def test_the_name_of_the_public_address_is_right_too() -> None:
    assert Guard(is_open=True, url=PUBLIC).is_host("bus.example")
    assert not Guard(is_open=True, url=PUBLIC).is_host("bus.example.evil.example")
    assert not Guard(url=PUBLIC).is_host("evil.example")
    assert Guard(url=PUBLIC).is_host("10.0.0.7:8085"), "a probe has the address"
    assert Guard().is_host("any.example"), "who logs in says who it is"


@pytest.mark.parametrize(
    ("host", "fault"),
    [
        *((each, 0) for each in ("10.0.0.7:8081", "[2001:db8::1]", "localhost", "mb1:8081")),
        *((each, 0) for each in ("bus.example", "BUS.example.:8081")),
        *((each, 421) for each in ("evil.example", "bus.example.evil.example", "", ":80")),
        *((each, 421) for each in ("127.0.0.1.evil.example:8081", "127.1")),
    ],
)
def test_programs_call_by_an_address_a_known_name_or_one_without_a_dot(
    host: str, fault: int
) -> None:
    guard = Guard(names=("bus.example",))
    found = guard.fault_of_page({"host": host})
    assert (found.code if found else 0) == fault
    again = guard.fault_of_page({"host": host, "authorization": "Bearer made up by a page"})
    assert again == found
    assert guard.fault_of_page({}) is None, "a browser sends a Host"


def test_a_service_for_programs_answers_no_page() -> None:
    for headers in ({"origin": "http://127.0.0.1"}, {"sec-fetch-site": "cross-site"}):
        for guard in (Guard(), Guard(is_open=True), Guard(names=())):
            found = guard.fault_of_page({"host": "127.0.0.1", **headers})
            assert found is not None
            assert found.code == 403


@pytest.mark.parametrize(
    ("headers", "sender"),
    [
        ({"origin": "http://evil.example", "sec-fetch-site": "same-origin"}, Sender.FOREIGN),
        ({"origin": "null"}, Sender.FOREIGN),
        ({"origin": "null", "sec-fetch-site": "cross-site"}, Sender.FOREIGN),
        ({"origin": "null", "sec-fetch-site": "same-origin"}, Sender.OURS),
        ({"origin": "http://bus.example", "host": "bus.example"}, Sender.FOREIGN),
        ({"origin": PUBLIC, "host": "10.0.0.7:8085"}, Sender.OURS),
        ({"origin": "https://shop.example", "sec-fetch-site": "cross-site"}, Sender.OURS),
        ({"sec-fetch-site": "cross-site"}, Sender.FOREIGN),
        ({"sec-fetch-site": "same-site"}, Sender.FOREIGN),
        ({"sec-fetch-site": "same-origin"}, Sender.OURS),
        ({"sec-fetch-site": "none"}, Sender.PERSON),
        ({}, Sender.UNKNOWN),
    ],
    ids=str,
)
def test_a_request_counts_by_what_the_browser_says_of_its_page(
    headers: dict[str, str], sender: Sender
) -> None:
    guard = Guard(url=PUBLIC, origins=("https://shop.example",))
    assert guard.sender(headers, "http") is sender


def test_without_a_public_address_a_page_is_ours_by_scheme_and_host() -> None:
    headers = {"origin": "http://127.0.0.1:8085", "host": "127.0.0.1:8085"}
    assert Guard().sender(headers, "http") is Sender.OURS
    assert Guard().sender(headers, "https") is Sender.FOREIGN


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://Bus.Example/", "https://bus.example"),
        ("https://bus.example:443", "https://bus.example"),
        ("http://bus.example:80", "http://bus.example"),
        ("https://bus.example:8443", "https://bus.example:8443"),
        ("https://[2001:DB8::1]:443", "https://[2001:db8::1]"),
    ],
)
def test_our_own_page_is_ours_however_its_address_is_written(url: str, origin: str) -> None:
    assert is_public_url(url)
    assert Guard(url=url).sender({"origin": origin}, "http") is Sender.OURS
    assert Guard(url=url).sender({"origin": f"{origin}.evil.example"}, "http") is Sender.FOREIGN


def test_a_frame_that_hides_its_origin_is_foreign_even_where_null_may_call_by_a_token() -> None:
    guard = Guard(is_open=True, origins=("null", "*"))
    assert guard.sender({"origin": "null", "host": "127.0.0.1"}, "http") is Sender.FOREIGN
    assert guard.sender({"origin": "http://evil.example"}, "http") is Sender.FOREIGN


@pytest.mark.parametrize(
    "url",
    [
        "bus.example",
        "https://bus.example/page",
        "ftp://a",
        "https://",
        "https://a:b",
        "https://u@a",
    ],
)
def test_a_public_address_is_an_origin(url: str) -> None:
    assert is_public_url(PUBLIC)
    assert not is_public_url(url)
