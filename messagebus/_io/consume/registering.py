"""The registration of one consumer's source: asked for until every broker has its queue.

    begin ─▶ registered, not by all ─▶ ... ─▶ complete; begin again when a broker lacks the queue
         └─▶ refused: `fatal`, for those who wait in `start`, and asked again slowly

Runs on one asyncio loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from messagebus._io.loop import Conditions, Tasks
from messagebus._io.wire import TOO_LATE, Registration, Topology
from messagebus.destination import Source, Subscription, expires
from messagebus.errors import (
    LoginRefused,
    MessageBusError,
    RegistrationIncomplete,
    TopologyMismatch,
)
from messagebus.topology import Options

log = logging.getLogger("messagebus.consumer")

REGISTER_TIMEOUT_MS = 30_000
REGISTER_RETRY_MS = 1_000
# The first of failed tries for one reason is logged, then one a minute.
LOGGED_EVERY = 60
LOGIN_RETRY_MS = 10_000
# For the deletion of a subscription that goes with its consumer.
DELETE_TIMEOUT_MS = 2_000


class Registering:
    """The registration of one source.

    changed: looked at when it has got on. on_answer: called with the source's options as soon as one agent
    has answered; raises TopologyMismatch where it cannot be consumed like this. on_options: called with the
    options of each registration. on_ready: called for a refused login.
    """

    def __init__(
        self,
        source: Source,
        topology: Topology,
        tasks: Tasks,
        changed: Conditions,
        *,
        on_answer: Callable[[Options], None],
        on_options: Callable[[Options], None],
        on_ready: Callable[[], None],
    ) -> None:
        self._source, self._topology = source, topology
        self._tasks, self._changed = tasks, changed
        self._on_answer, self._on_options, self._on_ready = on_answer, on_options, on_ready
        self.fatal: LoginRefused | TopologyMismatch | None = None
        """The reason why a start is of no use."""
        self.registration: Registration | None = None
        """None until an agent answered; `complete` tells whether every broker has the queue."""
        self._running: asyncio.Task[None] | None = None

    @property
    def is_complete(self) -> bool:
        """True when every broker has the queue."""
        return self.registration is not None and self.registration.complete

    def begin(self) -> None:
        """Register at the start, and when a broker lacks the queue: one that expires may have done so."""
        if not self._tasks.is_over and (self._running is None or self._running.done()):
            self._running = self._tasks.spawn(
                self._register(), cancelled=self.begin, pause_s=REGISTER_RETRY_MS / 1000
            )

    async def _register(self) -> None:
        """Create the subscription on every broker; go on until it is complete."""
        complete, told, same = False, "", 0
        while not complete:
            try:
                self.registration = await self._topology.register(
                    [self._source], timeout_ms=REGISTER_TIMEOUT_MS, on_answer=self._look
                )
            except RegistrationIncomplete as fault:
                self.registration = Registration(False, missing=fault.missing)
                log.warning(
                    "registration incomplete subscription=%s reason=%r docs=%s",
                    *(self._source, str(fault), fault.docs),
                )
            except TopologyMismatch as fault:
                log.error(
                    "registration refused subscription=%s reason=%r docs=%s",
                    *(self._source, str(fault), fault.docs),
                )
                self.fatal = fault
                self._changed.look()
                await asyncio.sleep(LOGIN_RETRY_MS / 1000)
            except LoginRefused as fault:
                self.login_refused(fault)
                await asyncio.sleep(LOGIN_RETRY_MS / 1000)
            except MessageBusError as fault:
                same = same + 1 if str(fault) == told else 0
                told = str(fault)
                if same % LOGGED_EVERY == 0:
                    log.warning(
                        "registration failed subscription=%s reason=%r docs=%s",
                        *(self._source, told, fault.docs),
                    )
                await asyncio.sleep(REGISTER_RETRY_MS / 1000)
            else:
                complete = self.registration.complete
                self._on_options(self.registration.options.get(str(self._source), {}))
                if isinstance(self.fatal, TopologyMismatch):
                    self.fatal = None
            self._changed.look()

    def _look(self, registration: Registration) -> None:
        """Look whether the source is new; hand its options on."""
        if str(self._source) in registration.created and not expires(self._source):
            told = "it did not exist before: check the name"
            log.warning("created source=%s reason=%r", self._source, told)
        options = registration.options.get(str(self._source), {})
        self._on_answer(options)

    def login_refused(self, fault: LoginRefused) -> None:
        """Report a refused login to the callers that wait in start().

        A running client tries again, slowly: the password may rotate, and one broker's refusal is no reason
        to leave the others.
        """
        log.error(
            "login refused broker=%s reason=%r docs=%s", fault.broker, fault.reason, fault.docs
        )
        self.fatal = fault
        self._changed.look()
        self._on_ready()

    def logged_in(self) -> None:
        """Note that a broker has taken the login."""
        if isinstance(self.fatal, LoginRefused):
            self.fatal = None

    async def leave(self) -> None:
        """Delete a subscription that goes with its consumer; if no agent does it in time, it expires."""
        source = self._source
        if not (isinstance(source, Subscription) and source.goes_with_consumer):
            return
        try:
            async with asyncio.timeout(DELETE_TIMEOUT_MS / 1000):
                await self._topology.delete(source, timeout_ms=DELETE_TIMEOUT_MS)
        except (MessageBusError, TimeoutError) as fault:
            log.info("left to expire subscription=%s reason=%r", source, str(fault) or TOO_LATE)
