"""HTTP servers of the services: listening, bounds, TLS, tokens, allowances, guards, metrics.

The agent, the gateway and the monitor serve with `server`, which needs uvicorn; the health checks of a worker
with `probes`, which needs nothing. Applications do not import it, and `import messagebus` loads none of it.
"""

from __future__ import annotations

__all__: list[str] = []
