"""The logger of this app. Each message is one line, even if it contains a client's text."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Mapping
from typing import Any

# The Unicode categories of control characters, format characters (which can change the text
# direction), surrogates, and separators of lines and paragraphs.
_ESCAPED = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def printable(value: object) -> str:
    """Return `value` as text on a single line, with control characters escaped."""
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
    # This is a filter of the logger, so it escapes the arguments of all log calls. Handlers still
    # get message and arguments separately.
    if isinstance(record.args, Mapping):
        record.args = {name: _shown(arg) for name, arg in record.args.items()}
    elif record.args:
        record.args = tuple(map(_shown, record.args))
    return True


logger = logging.getLogger("django_redis_sync")
logger.addFilter(_escape)
