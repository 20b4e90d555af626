"""Why a permit was not granted: every reason once, for errors, responses, commands and logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


def gettext_noop(text: str) -> str:
    """Return `text`. The function's name marks the text for translation."""
    return text


class Reason(NamedTuple):
    """`word`: for programs, as in the server's reply. `sentence`: for people, a `str.format`
    template with `detail`. `crowded`: True if other holders or waiters are the cause, so that fewer
    requests would help. `skippable`: True if `locks run --skip` then exits with 0. `counted`: the
    event of the statistics: n (rejected at once), t (timed out), or "" for none.
    """

    word: str
    sentence: str
    crowded: bool = False
    skippable: bool = False
    counted: str = ""


FULL = "full"
SHARE = "share"
TIMEOUT = "timeout"
PAUSED = "paused"
MAX_WAITING_THREADS = "max_waiting_threads"
MAX_WAITING_TASKS = "max_waiting_tasks"
CLEARED = "cleared"
OUTAGE = "outage"

REASONS = {
    reason.word: reason
    for reason in (
        Reason(FULL, gettext_noop("all permits are taken"), True, True, counted="n"),
        Reason(SHARE, gettext_noop("all permits of its share are taken"), True, True, counted="n"),
        Reason(TIMEOUT, gettext_noop("no permit came free in time"), True, True, counted="t"),
        Reason(
            MAX_WAITING_THREADS,
            gettext_noop("all permits are taken, and this process has reached max_waiting_threads"),
            crowded=True,
            skippable=True,
        ),
        Reason(
            MAX_WAITING_TASKS,
            gettext_noop("all permits are taken, and this process has reached max_waiting_tasks"),
            crowded=True,
            skippable=True,
        ),
        Reason(PAUSED, gettext_noop("an operator paused it"), skippable=True, counted="n"),
        Reason(CLEARED, gettext_noop("an operator cleared this waiter")),
        Reason(OUTAGE, gettext_noop("Redis can't be reached, and on_outage is 'closed'")),
        Reason(
            "large",
            gettext_noop("an operator's limit of {detail} is below the permits asked for"),
        ),
        Reason("kind", gettext_noop("it is in use as a lock of another kind")),
    )
}


def reason_of(word: str) -> Reason:
    """Return the reason of a word. The sentence of an unknown word is the word itself."""
    return REASONS.get(word) or Reason(word, word.replace("{", "{{").replace("}", "}}"))


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a permit was not granted.

    `reason`: a word of REASONS. `detail`: the limit for "large", p or w for "kind". `waiting`: the
    number of waiters. `mean_hold`: mean seconds that permits were held lately. `limit`: the
    operator's or else the caller's. The last two are None if unknown. For "share", `waiting` and
    `limit` are those of the share.
    """

    reason: str
    detail: str = ""
    waiting: int = 0
    mean_hold: float | None = None
    limit: int | None = None

    @property
    def why(self) -> Reason:
        """The entry of the reason in REASONS."""
        return reason_of(self.reason)

    def __str__(self) -> str:
        return self.why.sentence.format(detail=self.detail)
