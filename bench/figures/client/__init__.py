"""The figures of the client library by itself: ids begin with ``client.``."""
