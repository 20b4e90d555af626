"""The logger of this app. Each message stays on a line, even with a client's text in it."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Mapping
from typing import Any

# Control, format (they turn the direction of writing), surrogates, line separators.
_ESCAPED = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def printable(value: object) -> str:
    """`value` on a single line, with control characters of a terminal escaped."""
    text = str(value)
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c) in _ESCAPED else c
        for c in text
    )


def _shown(arg: Any) -> Any:
    return printable(arg) if isinstance(arg, (str, BaseException)) else arg


def _escape(record: logging.LogRecord) -> bool:
    # A filter of the logger: no call can forget it, and handlers still see the arguments apart.
    if isinstance(record.args, Mapping):
        record.args = {name: _shown(arg) for name, arg in record.args.items()}
    elif record.args:
        record.args = tuple(map(_shown, record.args))
    return True


logger = logging.getLogger("django_redis_sync")
logger.addFilter(_escape)
