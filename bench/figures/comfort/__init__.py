"""The figures of the client in daily use: ids begin with ``comfort.``."""
