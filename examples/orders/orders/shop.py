"""Orders come in: the row of the order and its message are committed together, or neither is.

uvicorn orders.shop:http
"""

from __future__ import annotations

from sqlalchemy.exc import IntegrityError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from messagebus import Outbox
from orders.database import AWAY, orders, transaction
from orders.model import Order

__all__ = ["http", "place"]

outbox = Outbox()


def place(order: Order) -> bool:
    """Write the order and its message. Returns False, and changes nothing, for a number that is there."""
    try:
        with transaction() as connection:
            connection.execute(
                orders.insert().values(
                    number=order.number, customer=order.customer, price_ct=order.price_ct
                )
            )
            # No broker is asked here: the relay publishes it after the commit. Two brokers then confirm
            # it, so that no lost disk loses an order.
            outbox.add(connection, "orders", order, redundant=True)
    except IntegrityError:
        return False
    return True


async def put_order(request: Request) -> Response:
    """``PUT /orders/17 {"customer": "ann", "price_ct": 1000}``; may be repeated until it is answered."""
    try:
        match await request.json():
            case {"customer": str(customer), "price_ct": int(price_ct)}:
                order = Order(request.path_params["number"], customer, price_ct)
            case _:
                raise ValueError("an object with customer and price_ct wanted")
    except ValueError as fault:
        return JSONResponse({"fault": str(fault)}, status_code=400)
    try:
        is_new = await run_in_threadpool(place, order)
    except AWAY:  # perhaps it was committed; the second try finds out
        return Response(status_code=503, headers={"Retry-After": "1"})
    return Response(status_code=201 if is_new else 200)


http = Starlette(routes=[Route("/orders/{number}", put_order, methods=["PUT"])])
