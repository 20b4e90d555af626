"""The actions of an operator on the admin's pages: prepared, shown, then carried out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypedDict

from django.contrib import messages
from django.http import QueryDict
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from .. import conf
from ..operators import actions
from ..operators.names import count_keys
from ..operators.status import Holder, Status
from ..protocol.scripts import MOST_PERMITS
from . import pages

#: The level of a message, and its text.
Outcome = tuple[int, str]


class Author(TypedDict):
    """The acting user, and the reason given."""

    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class Deed:
    """An action that waits to be confirmed.

    `button`: the text of its button, the effect; `fields`: those that the form has to send
    again; `holders`: those to be evicted; `gone`: how many of those shown ended meanwhile;
    `keys`: how many keys of the name it speaks of too.
    """

    verb: str
    title: str
    consequence: str
    perform: Callable[[Author], Outcome]
    button: str
    fields: tuple[tuple[str, str], ...] = ()
    holders: tuple[pages.HolderRow, ...] = ()
    gone: int = 0
    keys: int = 0

    @property
    def harmless(self) -> bool:
        return self.verb in ("resume", "reset")


def prepare(verb: str, status: Status, form: QueryDict) -> Deed:
    """The action that a form asks for. ValueError, with words for people, if it makes no sense."""
    deed = VERBS[verb](status, form)
    if deed.holders:
        return deed
    keys = 0 if status.key is not None else count_keys([status.name])[status.name]
    if keys:
        now = ngettext("%d key", "%d keys", keys) % keys
    else:
        holding = ngettext("%d holds", "%d hold", status.holding) % status.holding
        now = f"{holding}, " + ngettext("%d waits", "%d wait", status.waiting) % status.waiting
    return replace(deed, keys=keys, button=f"{deed.button}: {now}")


def _release(status: Status, form: QueryDict) -> Deed:
    return _evicting("release", status, form.getlist("holder"))


def _clear(status: Status, form: QueryDict) -> Deed:
    return _evicting("clear", status, form.getlist("shown"))


def _evicting(verb: str, status: Status, references: list[str]) -> Deed:
    """Acts on the holders that the form speaks of, by token: a newcomer is left alone."""
    field = "holder" if verb == "release" else "shown"
    holders = pages.referred(status, references)
    if not holders:
        raise ValueError(_("It had ended by itself: nothing was done."))
    amount = len(holders)
    words = {"amount": amount, "name": status.display}
    title = ngettext(
        "Release %(amount)d holder of %(name)s?", "Release %(amount)d holders of %(name)s?", amount
    )
    button = ngettext(
        "Release %(amount)d holder of %(name)s", "Release %(amount)d holders of %(name)s", amount
    )
    rows = tuple(pages.holder_row(status, holder) for holder in holders)
    return Deed(
        verb=verb,
        title=title % words,
        button=button % words,
        consequence=_(
            "Whoever holds it is told that the lease is lost; the work itself is not stopped. "
            "The next in the queue gets in at once."
        ),
        perform=lambda author: _evict(status, holders, author),
        fields=tuple((field, row.reference) for row in rows),
        holders=rows,
        gone=len(set(references)) - amount,
    )


def _evict(status: Status, holders: list[Holder], author: Author) -> Outcome:
    answers = actions.clear(status, [holder.token for holder in holders], **author)
    cleared = [answer.id for answer in answers if answer.done]
    if not cleared:
        return messages.WARNING, _("It had ended by itself: nothing was done.")
    said = ngettext(
        "Released %(amount)d holder of %(name)s: %(ids)s.",
        "Released %(amount)d holders of %(name)s: %(ids)s.",
        len(cleared),
    )
    return messages.SUCCESS, said % {
        "amount": len(cleared),
        "name": status.display,
        "ids": ", ".join(cleared),
    }


def _pause(status: Status, form: QueryDict) -> Deed:
    return _marking(
        status,
        "pause",
        actions.pause,
        title=_("Pause %(name)s?"),
        button=_("Pause %(name)s"),
        consequence=_("Nobody new gets in until it is resumed. Whoever holds it may finish."),
        said=_("Paused %(name)s."),
    )


def _resume(status: Status, form: QueryDict) -> Deed:
    return _marking(
        status,
        "resume",
        actions.resume,
        title=_("Resume %(name)s?"),
        button=_("Resume %(name)s"),
        consequence=_("The queue moves on at once."),
        said=_("Resumed %(name)s."),
    )


def _reset(status: Status, form: QueryDict) -> Deed:
    return _marking(
        status,
        "reset",
        actions.reset,
        title=_("Reset the limit of %(name)s?"),
        button=_("Reset the limit of %(name)s"),
        consequence=_("The limit that the callers give applies again."),
        said=_("The callers’ own limit of %(name)s applies again."),
    )


def _marking(
    status: Status,
    verb: str,
    act: Callable[..., object],
    *,
    title: str,
    button: str,
    consequence: str,
    said: str,
    words: Mapping[str, object] | None = None,
    fields: tuple[tuple[str, str], ...] = (),
) -> Deed:
    """The deed that sets or takes back a mark; `title` and `said` name it, and `words`."""
    told = {"name": status.display, **(words or {})}

    def perform(author: Author) -> Outcome:
        act(status.name, status.key, **author)
        return messages.SUCCESS, said % told

    return Deed(verb, title % told, consequence, perform, button % told, fields)


def _resize(status: Status, form: QueryDict) -> Deed:
    given = form.get("limit", "").strip()
    try:
        limit = conf.whole("limit", int(given), MOST_PERMITS)
    except ValueError:
        said = _("A limit is a whole number from 1 to %(most)d.") % {"most": MOST_PERMITS}
        raise ValueError(said) from None
    return _marking(
        status,
        "resize",
        lambda name, key, **author: actions.resize(name, key, limit, **author),
        title=_("Set the limit of %(name)s to %(limit)d?"),
        button=_("Set the limit of %(name)s to %(limit)d"),
        consequence=_(
            "It stands above the callers’ own limit, in every process, until it is reset. Nobody "
            "is thrown out: where more are in than that, it shrinks as they finish."
        ),
        said=_("The limit of %(name)s is now %(limit)d."),
        words={"limit": limit},
        fields=(("limit", str(limit)),),
    )


VERBS: dict[str, Callable[[Status, QueryDict], Deed]] = {
    "release": _release,
    "clear": _clear,
    "pause": _pause,
    "resume": _resume,
    "resize": _resize,
    "reset": _reset,
}
