"""The label of a lease: its taker, for people. Bounded JSON, never trusted."""

from __future__ import annotations

import json
import os
import socket
import threading
from functools import lru_cache
from typing import Any

#: Characters of a field at the most.
MOST = 200
_FIELDS = ("host", "pid", "thread", "label", "user", "request")


@lru_cache(maxsize=1024)
def _write(pid: int, thread: str, label: str, user: str, request: str) -> str:
    values = (socket.gethostname(), pid, thread, label, user, request)
    fields = dict(zip(_FIELDS, values, strict=True))
    short = {key: v[:MOST] if isinstance(v, str) else v for key, v in fields.items() if v != ""}
    return json.dumps(short, separators=(",", ":"))


def write(label: str = "", user: str = "", request: str = "") -> str:
    """This process and thread, and the caller's own words, in ASCII JSON."""
    if request:  # differs every time: nothing to remember
        return _write.__wrapped__(
            os.getpid(), threading.current_thread().name, label, user, request
        )
    return _write(os.getpid(), threading.current_thread().name, label, user, request)


def read(text: str) -> dict[str, Any]:
    """The fields, str or int, of a text that `write` made; empty for any other."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(values, dict):
        return {}
    known = {key: values[key] for key in _FIELDS if isinstance(values.get(key), (str, int))}
    return {key: v[:MOST] if isinstance(v, str) else v for key, v in known.items()}
