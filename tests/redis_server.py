"""A Redis server in a thread."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

from fakeredis import TcpFakeServer


@contextmanager
def serving() -> Iterator[str]:
    """The URL of a server that is empty at first."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    server = TcpFakeServer(address, server_type="redis")
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"redis://127.0.0.1:{address[1]}/0"
    finally:
        server.shutdown()
        server.server_close()
