"""Tells the sums of a site how an ask ended, and that a lease is over."""

from __future__ import annotations

from ..engine.clerk import Clerk
from ..engine.wire import clock
from ..protocol.plans import Grant, Refusal
from .lease_state import Terms


def granted(clerk: Clerk, terms: Terms, grant: Grant) -> None:
    """A permit was granted."""
    if grant.refused:  # by shadow mode, which only counts
        clerk.count(terms, "s", 0)
    waited = grant.waited
    clerk.count(terms, "w" if waited else "g", int(waited * 1000))


def refused(clerk: Clerk, terms: Terms, refusal: Refusal) -> None:
    """A permit was refused."""
    if kind := refusal.why.counted:
        clerk.count(terms, kind, 0)


def released(clerk: Clerk, terms: Terms, grant: Grant) -> None:
    """A lease was given back."""
    clerk.count(terms, "r", max(0, int((clock() - grant.began) * 1000)))


def lost(clerk: Clerk, terms: Terms) -> None:
    """A lease turned out to be over under its holder."""
    clerk.count(terms, "l", 0)
