"""core.path: a message reaches every site that forwarders lead to, and comes to an end."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus.core.path import HOPS_MAX, Way, longer, read_path, way_on

SITES = "abcdef"
Lines = frozenset[tuple[str, str]]
LINES = st.frozensets(
    st.tuples(st.sampled_from(SITES), st.sampled_from(SITES)).filter(
        lambda line: line[0] != line[1]
    )
)


def arrivals(start: str, lines: Lines, hops_max: int = HOPS_MAX) -> Counter[str]:
    """Let one message go through real headers over every line, and count how often each site gets it."""
    found, waiting = Counter[str](), [(start, "")]
    while waiting:
        here, header = waiting.pop()
        found[here] += 1
        for begin, end in lines:
            path = read_path(header)
            if begin == here and way_on(path, here, end, hops_max) is Way.ON:
                waiting.append((end, longer(path, here)))
    return found


def simple_paths(start: str, lines: Lines) -> Counter[str]:
    """Count the paths without a repeated site by which each is reached: the oracle."""
    found = Counter[str]()

    def go(path: tuple[str, ...]) -> None:
        found[path[-1]] += 1
        for begin, end in lines:
            if begin == path[-1] and end not in path:
                go((*path, end))

    go((start,))
    return found


@pytest.mark.guarantee("forward-loops-end")
@given(st.sampled_from(SITES), LINES)
def test_each_site_gets_it_by_every_path_without_a_repeated_site_and_by_no_other(
    start: str, lines: Lines
) -> None:
    assert arrivals(start, lines) == simple_paths(start, lines)


@pytest.mark.guarantee("forward-loops-end")
@pytest.mark.parametrize("sites", ["ab", "abc", "abcd"])
def test_in_a_ring_each_site_gets_it_once(sites: str) -> None:
    ring = frozenset(zip(sites, sites[1:] + sites[0], strict=True))
    assert arrivals("a", ring) == dict.fromkeys(sites, 1)


def test_with_one_hop_each_site_of_a_full_mesh_gets_it_once() -> None:
    mesh = frozenset((a, b) for a in "abcd" for b in "abcd" if a != b)
    assert arrivals("a", mesh, hops_max=1) == dict.fromkeys("abcd", 1)
    assert arrivals("a", mesh)["b"] > 1


def test_a_site_that_goes_by_two_names_gets_it_once_more_and_no_further() -> None:
    """One forwarder calls the sites a and b, the one back calls them x and y."""
    path: tuple[str, ...] = ()
    went = list[str]()
    while True:
        here, there = [("a", "b"), ("y", "x")][len(went) % 2]
        if way_on(path, here, there) is not Way.ON:
            break
        went.append(here)
        path = read_path(longer(path, here))
    assert went == ["a", "y"]


def test_more_hops_than_allowed_end_it() -> None:
    path = tuple(f"s{n}" for n in range(3))
    assert way_on(path, "here", "there", 3) is Way.FAR
    assert way_on(path, "here", "there", 4) is Way.ON


def test_a_full_path_can_be_read_again() -> None:
    path = tuple(f"{n:064}" for n in range(HOPS_MAX))
    assert read_path(",".join(path)) == path
    assert way_on(path, "here", "there") is Way.FAR


@pytest.mark.parametrize(
    "value",
    [
        *(None, 17, b"a", ["a"], {"a": 1}, "", ",", "a,", ",a", "a b", "-a", "grün", "a\n"),
        ",".join(["a"] * (HOPS_MAX + 1)),
        "a" * 65,
        "a" * 1_000_000,
    ],
)
def test_what_no_forwarder_wrote_is_no_path(value: object) -> None:
    assert read_path(value) == ()
