"""A TCP proxy before one broker, which the kit can freeze, mute and cut."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

CHUNK_BYTES = 65_536
CONNECT_TIMEOUT_S = 5.0
FREEZE_LOOK_S = 0.01
# Class and method, as they stand behind the head of a frame.
CONSUME_OK = bytes((0, 60, 0, 21))

Pair = tuple[socket.socket, socket.socket]


class Proxy:
    """A proxy on a port of its own. Attributes may be set at any time, by any thread.

    target: ``host:port`` of the broker; counts for new connections.
    frozen: nothing is forwarded, all is kept. mute: what the client sends is thrown away.
    deaf: what the broker sends is thrown away. refusing: new connections are closed at once.
    bytes_per_s: the rate of the line from each client, with buffers as small as a network's; 0: no limit.
    opened, ended: connections accepted so far, and those of them that ended. consumers: answers to
    `basic.consume` forwarded so far, where the connection is not encrypted.
    """

    def __init__(self, target: str, *, bytes_per_s: int = 0) -> None:
        self.target, self.bytes_per_s = target, bytes_per_s
        self.frozen = self.mute = self.deaf = self.refusing = False
        self.delay_s = 0.0
        self.opened = self.ended = self.consumers = 0
        self._pairs: list[Pair] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        if bytes_per_s:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, CHUNK_BYTES)
        self.port: int = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def connections(self) -> int:
        """The number of connections that are open now."""
        with self._lock:
            return len(self._pairs)

    def cut(self) -> None:
        """End all connections at once, both ways."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for each in pair:
                _end(each)

    def close(self) -> None:
        """Take no more connections, and end all."""
        self.frozen = False
        _end(self._listener)
        self.cut()

    def heal(self) -> None:
        """Forward everything again. Bytes that were thrown away stay lost, so cut connections first."""
        self.frozen = self.mute = self.deaf = self.refusing = False
        self.delay_s = 0.0

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.opened += 1
            if self.refusing:
                _end(client)
                continue
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        time.sleep(self.delay_s)
        host, _, port = self.target.rpartition(":")
        try:
            server = socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S)
        except OSError:
            _end(client)
            return
        server.settimeout(None)
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pair = (client, server)
        with self._lock:
            self._pairs.append(pair)
        for one, other in (pair, (server, client)):
            threading.Thread(target=self._pump, args=(pair, one, other), daemon=True).start()

    def _pump(self, pair: Pair, source: socket.socket, sink: socket.socket) -> None:
        from_client, tail = source is pair[0], b""
        with contextlib.suppress(OSError):
            while part := source.recv(CHUNK_BYTES):
                while self.frozen:
                    time.sleep(FREEZE_LOOK_S)
                if self.mute if from_client else self.deaf:
                    continue
                if self.bytes_per_s and from_client:
                    time.sleep(len(part) / self.bytes_per_s)
                if not from_client:
                    # Counted before the client can know it.
                    self.consumers += (tail + part).count(CONSUME_OK)
                    tail = (tail + part)[1 - len(CONSUME_OK) :]
                sink.sendall(part)
        with self._lock:
            if pair in self._pairs:
                self._pairs.remove(pair)
                self.ended += 1
        for each in pair:
            _end(each)


def _end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
