"""Shares: parts of the callers of a name, such as tenants, that take turns."""

from __future__ import annotations

from datetime import date
from enum import Enum
from typing import Any
from uuid import UUID

from ..protocol.keys import check_text

#: Types that can be a share, or part of a name, by their text.
ALLOWED = (str, int, UUID, date, Enum)


def share_of(value: Any) -> str | None:
    """Return the text that identifies a share. Return None for None.

    Raise TypeError or ValueError if `value` can't be a share.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, ALLOWED):
        raise TypeError(
            f"share must be a str, int, UUID, date or Enum, not {type(value).__name__}; for a "
            "model, its pk"
        )
    return check_text("a share", str(value.name if isinstance(value, Enum) else value))
