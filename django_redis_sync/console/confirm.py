"""The operator actions of the admin pages. Each action is a form, which the confirmation page of
the action shows."""

from __future__ import annotations

import operator

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy, ngettext

from .. import values
from ..operators import actions
from ..operators.audit import MAX_IDS, MAX_TEXT
from ..operators.facts import Holder, Status
from ..operators.formats import EFFECT_OF_CLEAR, not_a_rate
from ..protocol.scripts import MOST_PERMITS

#: The outcome of an action: the level and the text of the message for the operator.
Outcome = tuple[int, str]

ENDED = gettext_lazy("The lease had already ended. Nothing was done.")


class ActionForm(forms.Form):
    """The form of an operator action. It has a field for each argument of the action, and a field
    for the reason. By default, `run` calls the method `method` of `actions.Change`. `title`,
    `effect`: texts of the confirmation page. `done`: the message after the action. `harmless`:
    False for a button in the warning color."""

    title: Promise
    effect: Promise
    done: Promise
    method = ""
    harmless = False
    field_order = ("seconds", "limit", "rate", "reason")

    reason = forms.CharField(
        label=gettext_lazy("Reason, for the log"),
        required=False,
        max_length=MAX_TEXT,
        widget=forms.TextInput({"size": 50, "autocomplete": "off"}),
    )

    def run(self, status: Status, by: str) -> Outcome:
        """Carry out the action on a name, and return the outcome. `by`: the operator. The form must
        be valid."""
        given = dict(self.cleaned_data)
        change = actions.Change(status.name, status.key, by=by, reason=given.pop("reason"))
        getattr(change, self.method)(**given)
        return messages.SUCCESS, str(self.done) % {"name": status.display, **self.cleaned_data}


class Pause(ActionForm):
    title = gettext_lazy("Pause %(name)s")
    effect = gettext_lazy(
        "During the pause, no new permits are granted. Present holders keep their permits."
    )
    done, method = gettext_lazy("Paused %(name)s."), "pause"
    seconds = forms.TypedChoiceField(
        label=gettext_lazy("For how long"),
        required=False,
        coerce=int,
        empty_value=None,
        choices=[
            ("", gettext_lazy("until it is resumed")),
            ("600", gettext_lazy("10 minutes")),
            ("3600", gettext_lazy("1 hour")),
            ("28800", gettext_lazy("8 hours")),
        ],
    )


class Resume(ActionForm):
    title = gettext_lazy("Resume %(name)s")
    effect = gettext_lazy("Permits that are not in use are granted to waiters at once.")
    done, method = gettext_lazy("Resumed %(name)s."), "resume"
    harmless = True


class Resize(ActionForm):
    title = gettext_lazy("Set the limit of %(name)s")
    effect = gettext_lazy(
        "The new limit overrides the callers’ own limit in every process until it is reset. No "
        "holder is evicted. If more permits are in use than the new limit allows, their number "
        "falls as holders finish. Don’t raise the limit of a lock: several holders would then work "
        "at the same time."
    )
    done, method = gettext_lazy("The limit of %(name)s is now %(limit)d."), "resize"
    limit = forms.IntegerField(label=gettext_lazy("New limit"), min_value=1, max_value=MOST_PERMITS)


class Rate(ActionForm):
    title = gettext_lazy("Set the rate of %(name)s")
    effect = gettext_lazy(
        "The new rate overrides the callers’ own rate in every process until it is reset. Each key "
        "of a policy has the rate for itself. No holder is evicted."
    )
    done, method = gettext_lazy("The rate of %(name)s is now %(rate)s."), "resize"
    rate = forms.CharField(
        label=gettext_lazy("New rate, such as 300/m or 10/30s"),
        widget=forms.TextInput({"size": 12, "autocomplete": "off"}),
    )

    def clean_rate(self) -> str:
        text: str = self.cleaned_data["rate"]
        try:
            return values.rate("rate", text)
        except ValueError:
            raise ValidationError(not_a_rate(text)) from None


class Reset(ActionForm):
    title = gettext_lazy("Reset the limit and the rate of %(name)s")
    effect = gettext_lazy("The callers’ own limit and rate apply again.")
    done, method = gettext_lazy("The callers’ own limit and rate of %(name)s apply again."), "reset"
    harmless = True


class Clear(ActionForm):
    """Evict each holder if its fence is at most the fence in the form. A holder that got its permit
    after the page was opened has a higher fence, and is not evicted."""

    title = gettext_lazy("Release all holders of %(name)s")
    effect = EFFECT_OF_CLEAR
    fence = forms.IntegerField(widget=forms.HiddenInput)

    def holders(self, status: Status) -> list[Holder]:
        """Return the holders that the action evicts."""
        text = str(self["fence"].value())
        fence = int(text) if text.isdecimal() else -1
        return [holder for holder in status.holders if self.evicts(holder.fence, fence)]

    #: Compare a holder's fence with the fence in the form. Return True to evict the holder.
    evicts = staticmethod(operator.le)

    def run(self, status: Status, by: str) -> Outcome:
        tokens = [holder.token for holder in self.holders(status)]
        results = actions.clear(status, tokens, by=by, reason=self.cleaned_data["reason"])
        ids = [result.id for result in results if result.done]
        if not ids:
            return messages.WARNING, str(ENDED)
        message = ngettext(
            "Released %(amount)d holder of %(name)s: %(ids)s.",
            "Released %(amount)d holders of %(name)s: %(ids)s.",
            len(ids),
        )
        shown = ", ".join([*ids[:MAX_IDS], *(["…"] if len(ids) > MAX_IDS else [])])
        words = {"amount": len(ids), "name": status.display, "ids": shown}
        return messages.SUCCESS, message % words


class Release(Clear):
    """Evict the holder that has the fence in the form."""

    title = gettext_lazy("Release a holder of %(name)s")

    evicts = staticmethod(operator.eq)


ACTIONS: dict[str, type[ActionForm]] = {
    action.__name__.lower(): action
    for action in (Release, Clear, Pause, Resume, Resize, Rate, Reset)
}
