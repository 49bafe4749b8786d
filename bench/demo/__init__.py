"""The whole way on real parts, played on this machine: messages flow while brokers come and go."""
