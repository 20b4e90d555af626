"""The operator actions of the admin pages: each is the form of a confirm page."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ..operators import actions
from ..operators.actions import MAX_IDS, MAX_TEXT
from ..operators.facts import Holder, Status
from ..protocol.scripts import MOST_PERMITS

#: The level of a message, and its text.
Outcome = tuple[int, str]


class Action(forms.Form):
    """An operator action. `title` and `effect` are shown before it, and `done` after it."""

    title: Promise
    effect: Promise
    done: Promise
    harmless = False
    #: The name of the function in operators.actions.
    verb = ""

    reason = forms.CharField(
        label=gettext_lazy("Reason, for the log"),
        required=False,
        max_length=MAX_TEXT,
        widget=forms.TextInput({"size": 50, "autocomplete": "off"}),
    )

    def holders(self, status: Status) -> list[Holder]:
        """Return the holders that the action evicts."""
        return []

    def run(self, status: Status, by: str) -> Outcome:
        """Carry out the action, and return the message. The form must be valid."""
        given = self.cleaned_data
        act = getattr(actions, self.verb)
        act(status.name, status.key, **self.arguments(), by=by, reason=given["reason"])
        return messages.SUCCESS, str(self.done) % {"name": status.display, **given}

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the action, in addition to the name."""
        return {}


class Pause(Action):
    verb = "pause"
    title = gettext_lazy("Pause %(name)s")
    effect = gettext_lazy(
        "No new permit is granted while it is paused. Present holders may finish."
    )
    done = gettext_lazy("Paused %(name)s.")
    minutes = forms.TypedChoiceField(
        label=gettext_lazy("For how long"),
        required=False,
        coerce=int,
        empty_value=None,
        choices=[
            ("", gettext_lazy("until it is resumed")),
            ("10", gettext_lazy("10 minutes")),
            ("60", gettext_lazy("1 hour")),
            ("480", gettext_lazy("8 hours")),
        ],
    )
    field_order = ("minutes", "reason")

    def arguments(self) -> dict[str, Any]:
        minutes = self.cleaned_data["minutes"]
        return {"seconds": minutes and minutes * 60}


class Resume(Action):
    verb = "resume"
    title = gettext_lazy("Resume %(name)s")
    effect = gettext_lazy("Waiters get free permits at once.")
    done = gettext_lazy("Resumed %(name)s.")
    harmless = True


class Resize(Action):
    verb = "resize"
    title = gettext_lazy("Set the limit of %(name)s")
    effect = gettext_lazy(
        "The new limit overrides the callers’ own limit in every process until it is reset. No "
        "holder is evicted. If more permits are in use, their number shrinks as holders finish."
    )
    done = gettext_lazy("The limit of %(name)s is now %(limit)d.")
    limit = forms.IntegerField(label=gettext_lazy("New limit"), min_value=1, max_value=MOST_PERMITS)
    field_order = ("limit", "reason")

    def arguments(self) -> dict[str, Any]:
        return {"limit": self.cleaned_data["limit"]}


class Reset(Action):
    verb = "reset"
    title = gettext_lazy("Reset the limit of %(name)s")
    effect = gettext_lazy("The callers’ own limit applies again.")
    done = gettext_lazy("The callers’ own limit of %(name)s applies again.")
    harmless = True


class Clear(Action):
    """Evict the holders up to a fence. These are the ones that the page showed, because later
    grants have higher fences."""

    title = gettext_lazy("Release all holders of %(name)s")
    effect = gettext_lazy(
        "A holder loses its lease and is notified. Its work is not stopped. The next waiter gets "
        "the permit at once."
    )
    fence = forms.IntegerField(widget=forms.HiddenInput)

    def holders(self, status: Status) -> list[Holder]:
        text = str(self["fence"].value())
        fence = int(text) if text.isdecimal() else -1
        return [holder for holder in status.holders if self.evicts(holder.fence, fence)]

    def evicts(self, fence: int, given: int) -> bool:
        return fence <= given

    def run(self, status: Status, by: str) -> Outcome:
        tokens = [holder.token for holder in self.holders(status)]
        results = actions.clear(status, tokens, by=by, reason=self.cleaned_data["reason"])
        ids = [result.id for result in results if result.done]
        if not ids:
            return messages.WARNING, already_ended()
        message = ngettext(
            "Released %(amount)d holder of %(name)s: %(ids)s.",
            "Released %(amount)d holders of %(name)s: %(ids)s.",
            len(ids),
        )
        shown = ", ".join([*ids[:MAX_IDS], *(["…"] if len(ids) > MAX_IDS else [])])
        words = {"amount": len(ids), "name": status.display, "ids": shown}
        return messages.SUCCESS, message % words


class Release(Clear):
    """Evict the holder with this fence."""

    title = gettext_lazy("Release a holder of %(name)s")

    def evicts(self, fence: int, given: int) -> bool:
        return fence == given


EVICTING = ("release", "clear")
ACTIONS: dict[str, type[Action]] = {
    action.__name__.lower(): action for action in (Release, Clear, Pause, Resume, Resize, Reset)
}


def already_ended() -> str:
    return _("The lease had already ended. Nothing was done.")
