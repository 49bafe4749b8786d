"""Addresses by which operators have something done: a plan, its run, its end before its time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from messagebus.numbers import read_whole
from messagebus.services.monitor.actions import NotDone
from messagebus.services.monitor.people import Principal
from messagebus.services.monitor.plans import KINDS, RATE_MAX_PER_S, RATE_PER_S, Order

if TYPE_CHECKING:
    from messagebus.services.monitor.web import Monitor

ABOUT_CHARS_MAX, REASON_CHARS_MAX = 1_000, 200
CONFLICT, FORBIDDEN = 409, 403
Do = Callable[[dict[str, str]], Awaitable[str]]


async def plan(monitor: Monitor, request: Request, who: Principal) -> Response:
    """Make a plan of a form's order, and lead to its page."""

    async def make(fields: dict[str, str]) -> str:
        return (await monitor.actions.plan(_order(fields), who)).id

    return await _by_form(monitor, request, who, make, "/")


async def run(monitor: Monitor, request: Request, who: Principal) -> Response:
    """Run a plan, once."""
    id, peer = request.path_params["id"], request.client.host if request.client else "?"

    async def begin(fields: dict[str, str]) -> str:
        token, typed = fields.get("plan_token", ""), fields.get("typed", "")
        await monitor.actions.run(id, who, token=token, typed=typed, peer=peer)
        return str(id)

    return await _by_form(monitor, request, who, begin, f"/plans/{id}")


async def cancel(monitor: Monitor, request: Request, who: Principal) -> Response:
    """End a run between two messages."""
    id = request.path_params["id"]

    async def end(_: dict[str, str]) -> str:
        monitor.actions.cancel(id, who)
        return str(id)

    return await _by_form(monitor, request, who, end, f"/plans/{id}")


async def _by_form(
    monitor: Monitor, request: Request, who: Principal, do: Do, back: str
) -> Response:
    """Do what a form of this session asks for, which returns a plan's id; say why where it is not done."""
    fields = await monitor.form(request, who)
    if fields is None:
        text = "The form belongs to another session: load the page again."
        return monitor.tell(request, who, "Not done", text, FORBIDDEN)
    try:
        return RedirectResponse(f"/plans/{await do(fields)}", 303)
    except NotDone as fault:
        return monitor.tell(request, who, "Not done", str(fault), CONFLICT, back)


def _order(fields: dict[str, str]) -> Order:
    """Read an order. Raises NotDone."""
    kind, about = fields.get("do", ""), " ".join(fields.get("about", "").split())
    if kind not in KINDS:
        raise NotDone(f"There is no such action: {kind[:20]}")
    if not 0 < len(about) <= ABOUT_CHARS_MAX:
        raise NotDone("A name of 1 to 1,000 characters is required.")
    try:
        rate = read_whole(fields.get("rate", "") or RATE_PER_S, 1, RATE_MAX_PER_S)
    except ValueError:
        raise NotDone(f"Messages a second: 1 to {RATE_MAX_PER_S:,}.") from None
    reason = fields.get("reason", "").strip()[:REASON_CHARS_MAX]
    return Order(
        kind=kind,
        about=about,
        broker=fields.get("broker", "").strip(),
        reason=reason,
        rate_per_s=rate,
    )
