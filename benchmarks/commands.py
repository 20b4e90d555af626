"""Count the commands that clients send, with MONITOR on the server."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from typing import Any

import redis

#: Commands that set up a connection. They are not counted.
_GREETINGS = {"CLIENT", "HELLO", "SELECT", "AUTH", "PING", "INFO", "SUBSCRIBE", "CLUSTER"}


@contextlib.contextmanager
def counted(url: str) -> Iterator[dict[str, int]]:
    """Count the commands that clients send during the `with` block, but not those of scripts. Yield
    a dict from a command's name to its count. The dict is complete only after the block."""
    counts: dict[str, int] = {}
    client = redis.Redis.from_url(url)
    marker = b"the end of this count"
    # Use no socket timeout, because it may take long until the next command arrives.
    endless = redis.Redis.from_url(url, socket_timeout=None)
    with endless as listener, listener.monitor() as monitor:
        connection: Any = monitor.connection

        def listen() -> None:
            while True:
                line = connection.read_response(disconnect_on_error=False)
                line = line.decode(errors="replace") if isinstance(line, bytes) else line
                if marker.decode() in line:
                    return
                found = re.match(r'\S+ \[\d+ (\S+)\] "([^"]*)"', line)
                if found and found[1] != "lua" and found[2].upper() not in _GREETINGS:
                    word = found[2].upper()
                    counts[word] = counts.get(word, 0) + 1

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        try:
            yield counts
        finally:
            client.echo(marker)
            thread.join(10)
            client.close()
