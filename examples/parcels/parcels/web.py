"""The service: scans are published when they come in, and a handler beside the requests keeps the places.

uvicorn parcels.web:api
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse

from messagebus import App, BacklogFull, PublishError
from messagebus.integrations.asgi import bus_of, lifespan
from parcels import places
from parcels.model import Name, Scan, Scanned

__all__ = ["api", "bus"]

# The scanner sends a scan again after that.
PUBLISH_WITHIN_S = 5.0

bus = App()
api = FastAPI(title="Parcels", lifespan=lifespan(bus))


@bus.subscriber("scans", subscription="places", concurrency=8)
def keep(scan: Scanned) -> None:
    """Keep the place of a parcel. A plain function runs in a thread, because a disk makes it wait."""
    places.put(scan)


def get_bus(request: Request) -> App:
    return bus_of(request.app)


@api.post("/parcels/{parcel}/scans", status_code=202)
async def add_scan(
    parcel: Name, scan: Scan, bus: Annotated[App, Depends(get_bus)]
) -> dict[str, str]:
    """Publish a scan. After the answer 202 a broker has it on its disk."""
    published = await bus.publish(
        "scans",
        Scanned(parcel=parcel, **scan.model_dump()),
        key=parcel,
        message_id=f"scan-{scan.id}",
        timeout_s=PUBLISH_WITHIN_S,
    )
    return {"message_id": published.message_id}


@api.get("/parcels/{parcel}")
def where(parcel: Name) -> dict[str, str]:
    """Return the last known place of a parcel."""
    if (found := places.where(parcel)) is None:
        raise HTTPException(404, f"parcel {parcel} has not been scanned")
    depot, at = found
    return {"parcel": parcel, "depot": depot, "at": at}


@api.exception_handler(PublishError)
@api.exception_handler(BacklogFull)
async def not_published(_: Request, fault: Exception) -> JSONResponse:
    """The scan may be stored or not. Sent again, it is the same message."""
    return JSONResponse({"detail": str(fault)}, status_code=503, headers={"Retry-After": "1"})
