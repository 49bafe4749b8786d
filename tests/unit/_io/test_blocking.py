from __future__ import annotations

import asyncio
import warnings

import pytest

from messagebus import BusConfig, declare
from messagebus._io.blocking import run_blocking
from messagebus.secret import Secret


async def seven() -> int:
    await asyncio.sleep(0)
    return 7


def test_a_coroutine_is_run_to_its_end() -> None:
    assert run_blocking(seven()) == 7


async def test_within_a_running_loop_it_says_what_to_do_instead() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a coroutine that is never awaited
        with pytest.raises(RuntimeError, match=r"asyncio\.to_thread"):
            declare(BusConfig(broker="127.0.0.1:1", user="u", password=Secret("p")), ["orders"])
    assert await asyncio.to_thread(run_blocking, seven()) == 7
