"""Tells the sums of a site how an ask ended, and that a lease is over."""

from __future__ import annotations

from ..engine.keeper import keeper
from ..engine.tally import Event
from ..engine.wire import clock
from ..protocol.plans import Grant, Refusal
from .lease_state import Terms


def asked(terms: Terms, got: Grant | Refusal) -> None:
    """A permit was granted, or refused."""
    if isinstance(got, Grant):
        if got.refused:  # by shadow mode, which only counts
            _count(terms, "s", 0)
        _count(terms, "w" if got.waited else "g", int(got.waited * 1000))
    elif got.why.counted:
        _count(terms, got.why.counted, 0)


def released(terms: Terms, grant: Grant) -> None:
    """A lease was given back."""
    _count(terms, "r", max(0, int((clock() - grant.began) * 1000)))


def lost(terms: Terms) -> None:
    """A lease turned out to be over under its holder."""
    _count(terms, "l", 0)


def _count(terms: Terms, kind: str, ms: int) -> None:
    keys = terms.keys
    if keys.keep:
        keeper(terms.alias).clerk.count(Event(keys, terms.template, kind, ms))
