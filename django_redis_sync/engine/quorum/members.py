"""The servers of a quorum, and the trust in their leases."""

from __future__ import annotations

import math
from collections.abc import Iterable

from django.core.exceptions import ImproperlyConfigured

from ..clients import urls_of

#: How much faster than ours a server's clock may run, and milliseconds besides.
DRIFT, DRIFT_MS = 0.01, 2


class Members(str):
    """The aliases of a quorum."""

    __slots__ = ("aliases",)
    aliases: tuple[str, ...]

    def __new__(cls, aliases: Iterable[str]) -> Members:
        given = tuple(aliases)
        self = super().__new__(cls, "+".join(given))
        self.aliases = given
        return self

    @property
    def need(self) -> int:
        """How many are a majority."""
        return len(self.aliases) // 2 + 1


def check(members: Members) -> None:
    """ImproperlyConfigured when an alias can't be used, or two are the same server."""
    # A server under two aliases would have two votes, and a minority could grant.
    places = {str(urls_of(alias)) for alias in members.aliases}
    if len(places) < len(members.aliases):
        raise ImproperlyConfigured(f"Two of {members.aliases!r} have the same LOCATION.")


def stretched(ms: str) -> str:
    """The lease to ask servers for, so that `ms` may be believed in."""
    return ms if ms == "inf" else str(math.ceil(int(ms) * (1 + DRIFT)) + DRIFT_MS)


def deducted(ms: str) -> float:
    """The milliseconds of a server's lease of `ms` that may be believed in."""
    return math.inf if ms == "inf" else math.floor((int(ms) - DRIFT_MS) / (1 + DRIFT))
