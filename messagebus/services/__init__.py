"""The services of a bus: the agent, the gateway, the monitor. Each needs the extra of its name."""
