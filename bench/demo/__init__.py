"""The demonstration on this machine with real processes: messages flow while brokers come and go."""
