"""The stages of one consumer put together, and their life: see `stage` for what they do.

Owners: `Pipeline` makes the stages that its consumer wants, and is the only one that knows all of them.
Optional stages are imported only where they are wanted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from messagebus._io.consume.copies import CopiedAnswers
from messagebus._io.consume.plain import Counters, Plain
from messagebus._io.consume.runs import LateRuns
from messagebus._io.consume.stage import Stage
from messagebus._io.hooks import HookChain
from messagebus.config import ConsumerConfig
from messagebus.core.deliveries import Ledger
from messagebus.destination import Source
from messagebus.message import Delivery

if TYPE_CHECKING:
    from messagebus._io.consume.claimed import Claimed
    from messagebus._io.consume.ordered import Ordered
    from messagebus._io.consume.store_turns import StoreTurns
    from messagebus.stores import Dedup

Fence = Callable[[Ledger, Callable[[], Awaitable[object]]], Awaitable[int | None]]
"""Finds the fence of a link; the second one waits for an answer of it. None: the link has ended."""


class Pipeline:
    """The stages of one consumer. dedup: None for none. chain: hooks that are told of duplicates.

    on_turn: called when something was answered, on_ready when something was handed out. on_back: called when
    the store of deduplication is back; what waited for it may have been given back.
    """

    def __init__(
        self,
        source: Source,
        config: ConsumerConfig,
        answers: CopiedAnswers,
        *,
        dedup: Dedup | None = None,
        chain: HookChain | None = None,
        on_turn: Callable[[], None],
        on_ready: Callable[[], None],
        on_back: Callable[[], None],
    ) -> None:
        self.counters = Counters()
        self.plain = Plain(config.handed_out_max, answers, self.counters)
        self.ready = self.plain.ready
        """Empty when nothing is there to be taken."""
        self.first: Stage = self.plain
        """Gets what arrives, and the answers of the application."""
        self.ordered: Ordered | None = None
        self.claimed: Claimed | None = None
        self.turns: StoreTurns | None = None
        """Those with the store of deduplication."""
        self.fence: Fence | None = None
        """Set where nothing of a link may be handed out before its fence is known."""
        if config.order != "none":
            from messagebus._io.consume.ordered import Ordered

            self.first = self.ordered = Ordered(config.order, self.plain, on_ready)
        if dedup is not None:
            from messagebus._io.consume.claimed import Claimed

            self.first = self.claimed = Claimed(
                dedup,
                source,
                self.ordered or self.plain,
                self.plain,
                chain=chain,
                on_turn=on_turn,
                on_ready=on_ready,
                on_back=on_back,
                timeout_s=config.consumer_timeout_s,
            )
            self.turns = self.claimed.claims.turns
            self.fence = self.turns.fence if dedup.fence else None
        if source.single_active:
            self.keep_order()

    def keep_order(self) -> None:
        """Keep the order of each link: its queue has a single active consumer."""
        if self.claimed is not None and self.ordered is None:
            self.claimed.keep_order()

    def run_handlers(self) -> LateRuns | None:
        """Note that each delivery has an end, as handlers run; return what late runs are reported to."""
        claims = None if self.claimed is None else self.claimed.claims
        if claims is not None:
            claims.runs_handlers = True
        if self.ordered is not None:
            self.ordered.runs_handlers = True
        return self.ordered or claims

    async def check(self) -> None:
        """Raise ConfigError for a store of deduplication that cannot be used: see `StoreTurns.check`."""
        if self.turns is not None:
            await self.turns.check()

    def give_back(self, delivery: Delivery) -> None:
        """Let a message run again whose run was cancelled; its delivery goes back with the link."""
        if self.claimed is not None:
            self.claimed.claims.give_back(delivery)

    def tick(self) -> None:
        """Look at the time."""
        if self.claimed is not None:
            self.claimed.claims.lapse()

    @property
    def running(self) -> int:
        """The deliveries that handlers run or answer, also of lost links: their end is to be stored."""
        runs = 0 if self.claimed is None else self.claimed.claims.running
        return max(self.plain.handed_out, runs)

    def put_forward(self, ms: int) -> None:
        """Let this time pass for deliveries that rest; for tests."""
        if self.ordered is not None:
            self.ordered.rests.put_forward(ms)

    def held(self) -> tuple[int, list[int]]:
        """Return how many deliveries rests keep back, and the ms until each rest ends; for tests.

        A batch is kept back when all its messages without an answer are. From any thread.
        """
        if self.ordered is None:
            return 0, []
        held, ends_ms = self.ordered.keyed.held()
        messages = Counter((each._ledger, each._tag) for each in held)
        count = sum(kept == ledger.unanswered(tag) for (ledger, tag), kept in messages.items())
        now_ms = self.ordered.rests.now_ms()
        return count, [max(0, end_ms - now_ms) for end_ms in ends_ms]

    def stop(self) -> None:
        """Have nothing come due any more."""
        if self.ordered is not None:
            self.ordered.rests.stop()

    async def finish(self, timeout_s: float) -> None:
        """Tell the store what there is to tell, up to this time."""
        if self.claimed is not None:
            await self.claimed.claims.finish(timeout_s)

    def stats(self) -> dict[str, Any]:
        """Return the fields of `ConsumerStats` about the stages."""
        found = {} if self.claimed is None else self.claimed.claims.stats()
        return found if self.ordered is None else {**found, **self.ordered.stats()}
