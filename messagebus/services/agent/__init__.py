"""The agent: one small service beside each broker.

It serves the consumer list, owns the topology together with the other agents, applies it to
its own broker, opens the broker's gate, and tells whether publishers are welcome there.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from messagebus.services.agent.config import AgentConfig
from messagebus.services.agent.topology.store import genesis

__all__ = ["AgentConfig", "genesis", "run"]


def run(config_path: str | Path) -> int:
    """Run the agent of a settings file until SIGTERM or SIGINT. The caller has configured its logs.

    Returns 0 at its end. Raises ConfigError when a setting or a port is wrong.
    """
    asyncio.run(_serve(AgentConfig.from_file(config_path)))
    return 0


async def _serve(config: AgentConfig) -> None:
    # Kits need `genesis` alone, and start a process for many a step: this is a quarter of a second.
    from messagebus.services.agent.service import Service

    await Service(config).run()
