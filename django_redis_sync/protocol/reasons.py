"""The reasons for a rejection, used by errors, responses, commands, and logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


def gettext_noop(text: str) -> str:
    """Return `text`. The function's name marks the text for translation."""
    return text


class Reason(NamedTuple):
    """A reason for a rejection.

    - `word`: the reason for programs, as in the server's reply.
    - `sentence`: the reason for people, as a `str.format` template with the field `detail`.
    - `crowded`: True if other holders or waiters are the cause.
    - `skippable`: True if `locks run --skip` exits with 0 for this reason.
    - `counted`: the counter in the statistics: n (rejected), t (timed out), or "" for none.
    - `bound`: a second counter, if the reason is another bound than the limit: b (share_limit),
      u (an operator's pause), or v (a rate or a cool-down).
    """

    word: str
    sentence: str
    crowded: bool = False
    skippable: bool = False
    counted: str = ""
    bound: str = ""


FULL = "full"
SHARE = "share"
RATE = "rate"
TIMEOUT = "timeout"
PAUSED = "paused"
MAX_WAITING_THREADS = "max_waiting_threads"
MAX_WAITING_TASKS = "max_waiting_tasks"
CLEARED = "cleared"
OUTAGE = "outage"

REASONS = {
    reason.word: reason
    for reason in (
        Reason(FULL, gettext_noop("all permits are in use"), True, True, counted="n"),
        Reason(SHARE, gettext_noop("all permits of the share are in use"), True, True, "n", "b"),
        Reason(RATE, gettext_noop("the rate allows no permit yet"), True, True, "n", "v"),
        Reason(TIMEOUT, gettext_noop("no permit became free in time"), True, True, counted="t"),
        Reason(
            MAX_WAITING_THREADS,
            gettext_noop(
                "all permits are in use, and this process has reached max_waiting_threads"
            ),
            crowded=True,
        ),
        Reason(
            MAX_WAITING_TASKS,
            gettext_noop("all permits are in use, and this process has reached max_waiting_tasks"),
            crowded=True,
        ),
        Reason(
            PAUSED,
            gettext_noop("an operator paused the name"),
            skippable=True,
            counted="n",
            bound="u",
        ),
        Reason(CLEARED, gettext_noop("an operator cleared this waiter")),
        Reason(OUTAGE, gettext_noop("Redis can't be reached, and on_outage is 'closed'")),
        Reason(
            "large",
            gettext_noop("the call needs more permits than an operator's limit of {detail}"),
        ),
        Reason("kind", gettext_noop("the name is in use as a lock of another kind")),
    )
}


@dataclass(frozen=True, slots=True)
class Rejection:
    """The outcome of an acquire that was granted no permit.

    `reason`: a word of REASONS. `detail`: the limit if `reason` is "large"; the kind in use if it
    is "kind". `waiting`: number of waiters. `mean_hold`: mean seconds that permits were held
    lately, or None if unknown. `limit`: the limit in force, or None if unknown. If `reason` is
    "share", `waiting` and `limit` are those of the share. `retry_after`: if `reason` is "rate", the
    seconds until the rate or a cool-down allows the call; else None.
    """

    reason: str
    detail: str = ""
    waiting: int = 0
    mean_hold: float | None = None
    limit: int | None = None
    retry_after: float | None = None

    @property
    def why(self) -> Reason:
        """The Reason in REASONS for the word `reason`. For a word that is not in REASONS, a Reason
        that has the word as its sentence."""
        word = self.reason
        return REASONS.get(word) or Reason(word, word.replace("{", "{{").replace("}", "}}"))

    def __str__(self) -> str:
        return self.why.sentence.format(detail=self.detail)
