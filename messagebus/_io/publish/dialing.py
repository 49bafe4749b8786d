"""Dials of a publisher's driver: connect, log in, ask for confirms, verify the destinations in use."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from messagebus._io.amqp.link import Link
from messagebus._io.loop import Tasks
from messagebus._io.publish.routes import RoutePolicy
from messagebus._io.publish.targets import Address
from messagebus._io.wire import TOO_LATE, DialTurns, Outage, Wire
from messagebus.broker import Broker
from messagebus.clock import LogLimit
from messagebus.config import BusConfig
from messagebus.errors import LoginRefused, MessageBusError

log = logging.getLogger("messagebus.publisher")

# One line a second for all refused logins of this process: a gateway logs in for many clients.
_refusals = LogLimit(1_000)


class DialUser(Protocol):
    """The owner of the links that dials open."""

    @property
    def is_linked(self) -> bool:
        """True when there is a current link."""

    def listen(self, number: int, link: Link) -> None:
        """Take the link's confirms and turns from now on."""

    async def verify(self, link: Link) -> list[Address]:
        """Return the destinations that were not looked for. Raises MessageBusError."""

    def opened(self, number: int, link: Link, unseen: list[Address]) -> None: ...

    def dial_failed(self, number: int, *, refused: bool, absent: bool) -> None: ...


class Dialer:
    """The dials of one driver, and what their faults say."""

    def __init__(
        self, bus: BusConfig, wire: Wire, policy: RoutePolicy, tasks: Tasks, user: DialUser
    ) -> None:
        self._bus, self._wire, self._policy, self._tasks = bus, wire, policy, tasks
        self._user = user
        self.fatal: LoginRefused | None = None
        self.connected = asyncio.Event()
        """Set when a link is open, or when a login was refused (`fatal`)."""
        self.last_fault = ""
        """Words behind the reason of a late publish."""
        self.outage = Outage(log)
        self.closing = Tasks()
        """Links that are hung up. A close that is cancelled before it began would close nothing."""
        self.is_over = False
        """True once the driver stops: nobody would close another link."""
        self._running: dict[int, asyncio.Task[None]] = {}

    def dial(self, number: int, timeout_ms: int, *, by_name: bool) -> None:
        """Begin a dial; `opened` or `dial_failed` of the user gets its number."""
        if self.is_over:
            return
        broker = self._policy.choose(number) if by_name else None
        self._running[number] = self._tasks.spawn(
            self._dial(number, timeout_ms, broker), cancelled=lambda: self._cancelled(number)
        )

    def cancel(self, number: int) -> None:
        """Give up a dial, if there is one."""
        if task := self._running.get(number):
            task.cancel()

    async def _dial(self, number: int, timeout_ms: int, broker: Broker | None) -> None:
        """Try one dial. broker: None for any. A broker without a gate that is open is refused."""
        link: Link | None = None
        try:
            turns, address = DialTurns.here(), (broker or self._bus.address).name
            async with turns.turn(address):
                timeout_ms = turns.timeout_ms(address, timeout_ms, self._bus.dial_timeout_max_s)
                async with asyncio.timeout(timeout_ms / 1000):
                    if broker is None:
                        link = await self._wire.dial(None, timeout_ms=timeout_ms)
                    else:
                        dial = self._wire.dial_to_publish
                        link = await dial(broker, timeout_ms=timeout_ms, waits=self._policy.stays)
                    self._user.listen(number, link)
                    await link.confirm_select()
                    unseen = await self._user.verify(link)
        except (MessageBusError, TimeoutError) as fault:
            if link is not None:
                link.abort()
                self.closing.spawn(link.hang_up())
            self._failed(number, fault)
        except asyncio.CancelledError:
            if link is not None:
                await link.hang_up()
            raise
        else:
            self._user.opened(number, link, unseen)
        finally:
            self._running.pop(number, None)

    def _cancelled(self, number: int) -> None:
        """Note a dial that was cancelled: the route knows whether by us."""
        self._running.pop(number, None)  # where it never began
        self._user.dial_failed(number, refused=False, absent=False)

    def _failed(self, number: int, fault: Exception) -> None:
        # A refused certificate locks no account.
        refused, absent = type(fault) is LoginRefused, getattr(fault, "absent", False)
        self._user.dial_failed(number, refused=refused, absent=absent)
        reason = str(fault) or TOO_LATE
        log.debug("dial failed broker=%s reason=%r", self._bus.broker, reason)
        if isinstance(fault, LoginRefused):
            if _refusals.allows():
                log.error(
                    "login refused broker=%s reason=%r docs=%s",
                    *(fault.broker, fault.reason, fault.docs),
                )
            self.login_refused(fault)
            self.last_fault = f"; login refused: {reason}"
        else:
            if not self._user.is_linked and self._policy.avoids() is None:
                self.outage.dial_failed(self._bus.broker, fault)
            if self.fatal is None:  # else that a later dial had no answer says less
                self.last_fault = f"; last fault: {reason}"

    def login_refused(self, fault: LoginRefused) -> None:
        """Note that a broker or an agent refuses our user."""
        self.fatal = fault
        self.connected.set()

    def succeeded(self, broker: str) -> None:
        """Note that a link to this broker is the current one."""
        self.fatal, self.last_fault = None, ""
        self.connected.set()
        if self.outage.since_ms:
            self.outage.over(broker)
