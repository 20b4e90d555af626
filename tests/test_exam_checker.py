"""The checker, on histories written by hand: each finding, and a similar history without it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from exam.checker import (
    EARLY,
    ERROR,
    FENCE,
    HUNG,
    LATE,
    NEVER_FREE,
    NEVER_TOLD,
    NO_REASON,
    NOT_GIVEN,
    ORDER,
    REFUSED,
    TOLD_LATE,
    TWO_INSIDE,
    Claims,
    Finding,
    against,
    check,
    gap,
)
from exam.observer import Event

pytestmark = pytest.mark.tools

PLAIN = Claims(within=2)
LEASED = Claims(lease=2, renewed=True, within=2)
TELLS = replace(LEASED, told=True)


def history(*lines: tuple[Any, ...]) -> list[Event]:
    """Return events from (at, who, what, number, text); each worker has its own process."""
    workers: dict[str, int] = {}
    made = []
    for at, who, what, *rest in sorted(lines, key=lambda line: line[0]):
        worker = workers.setdefault(who, len(workers) + 1)
        number, text = [*rest, None, ""][:2] if len(rest) < 2 else rest
        name = "" if what in ("harm", "calm", "busy") else "x"
        made.append(Event(at, worker, 100 + worker, who, what, name, number, text or ""))
    return made


def visit(who: str, asked: float, entered: float, left: float, fence: float | None = None) -> Any:
    """Return a correct visit, which checks its lock every 0.1 s."""
    steps = [entered + 0.1 * n for n in range(1, 1000) if entered + 0.1 * n < left]
    checks = [(at + d, who, what) for at in steps for d, what in ((0, "probe"), (0.01, "held"))]
    return [
        (asked, who, "ask", 1),
        (entered, who, "enter", fence),
        *checks,
        (left, who, "leave"),
        (left + 0.01, who, "released"),
    ]


def kinds(found: list[Finding]) -> list[str]:
    return [one.kind for one in against(found)]


# More inside than the limit


@pytest.mark.parametrize("claims", [PLAIN, LEASED, TELLS])
def test_visits_one_after_the_other_are_right(claims: Claims) -> None:
    assert [] == check(history(*visit("a", 0, 0.1, 1), *visit("b", 0.2, 1.1, 2)), claims)


@pytest.mark.parametrize("claims", [PLAIN, LEASED, TELLS])
def test_overlap_is_found_with_its_length(claims: Claims) -> None:
    (found,) = check(history(*visit("a", 0, 0.1, 1), *visit("b", 0.2, 0.5, 2)), claims)
    assert TWO_INSIDE == found.kind
    assert found.seconds == pytest.approx(0.5, abs=0.15)
    assert "a got no report of a loss" in found.text


def test_limit_of_two_is_exceeded_by_the_third() -> None:
    seen = [*visit("a", 0, 0.1, 1), *visit("b", 0.2, 0.5, 2), *visit("c", 0.2, 0.8, 2)]
    assert [] == check(history(*seen), Claims(limit=3))
    assert [TWO_INSIDE] == kinds(check(history(*seen), Claims(limit=2)))
    assert [] == kinds(check(history(*seen[: len(seen) - 20]), Claims(limit=3)))


def test_killed_holder_counts_up_to_its_last_message() -> None:
    seen = [(0, "a", "ask", 1), (0.1, "a", "enter"), (0.6, "a", "died")]
    assert [] == check(history(*seen, *visit("b", 0.2, 0.5, 1)), PLAIN)


def test_loss_that_was_reported_before_the_next_grant_is_right() -> None:
    told = [*visit("a", 0, 0.1, 1)[:-2], (1, "a", "probe"), (1.1, "a", "lost")]
    harm = [(0.05, "exam", "harm"), (0.06, "exam", "calm")]
    assert [] == check(history(*harm, *told, *visit("b", 0.2, 1.05, 2)), TELLS)
    late = [*visit("a", 0, 0.1, 1.5)[:-2], (1.5, "a", "probe"), (1.5, "a", "lost")]
    (found,) = check(history(*harm, *late, *visit("b", 0.2, 0.7, 2)), TELLS)
    assert (TOLD_LATE, True) == (found.kind, found.against)
    assert "+0.80 s" in found.text


def test_holders_may_learn_of_lost_data_within_a_lease() -> None:
    harm = [(0.5, "exam", "harm"), (0.6, "exam", "calm")]
    told = [*visit("a", 0, 0.1, 1.5)[:-2], (1.5, "a", "probe"), (1.5, "a", "lost")]
    other = visit("b", 0.6, 0.7, 9)
    assert [] == kinds(check(history(*harm, *told, *other), TELLS, lossy=True))
    never = visit("a", 0, 0.1, 8)
    assert [NEVER_TOLD] == kinds(check(history(*harm, *never, *other), TELLS, lossy=True))
    (seen,) = check(history(*harm, *never, *other), LEASED, lossy=True)
    assert (TWO_INSIDE, False) == (seen.kind, seen.against)


def test_stopped_holder_is_not_inside_while_it_does_not_run() -> None:
    stop = [(1.02, "a", "stopped", 1.0), (4.02, "a", "resumed", 4.0)]
    a = [*visit("a", 0, 0.1, 1)[:-2], *stop]
    lost = [(4.03, "a", "probe"), (4.03, "a", "lost")]
    assert [] == check(history(*a, *visit("b", 0.2, 3.1, 3.9), *lost), TELLS)
    on = [(4.03, "a", "probe"), (4.03, "a", "held"), (4.5, "a", "leave"), (4.6, "a", "released")]
    b = visit("b", 0.2, 3.1, 5)
    (found,) = check(history(*a, *on, *b), LEASED)
    assert (LATE, False) == (found.kind, found.against)
    assert [TWO_INSIDE] == kinds(check(history(*a, *on, *b), TELLS))


def test_lease_that_is_not_renewed_ends_by_itself() -> None:
    hard = Claims(lease=2)
    seen = check(history(*visit("a", 0, 0.1, 3), *visit("b", 0.2, 2.1, 3.5)), hard)
    assert [(LATE, False)] == [(one.kind, one.against) for one in seen]
    early = history(*visit("a", 0, 0.1, 3), *visit("b", 0.2, 1.3, 3.5))
    assert [TWO_INSIDE] == kinds(check(early, hard))


def test_lease_begins_at_its_grant_and_not_at_its_request() -> None:
    hard, b = Claims(lease=2), visit("b", 0.2, 2.1, 3.9)
    seen = [*visit("a", 0, 0.1, 1.9), *b, *visit("c", 2.2, 2.6, 4)]
    assert [TWO_INSIDE] == kinds(check(history(*seen), hard))
    late = [(0.1, "x", "harm"), (2.1, "x", "calm")]  # the reply may have been delayed
    assert [] == kinds(check(history(*late, *seen), hard))


def test_late_write_with_a_lower_fence_is_not_held_against_a_lock() -> None:
    fenced = Claims(lease=2, fenced=True)
    late = history(*visit("a", 0, 0.1, 3, 7), *visit("b", 0.2, 2.1, 3.5, 8))
    assert [] == kinds(check(late, fenced))
    worse = history(*visit("a", 0, 0.1, 3, 7), *visit("b", 0.2, 2.1, 3.5, 7))
    assert {LATE} == {*kinds(check(worse, fenced))} - {FENCE}


# Waiting


def test_living_holder_may_keep_its_place_beyond_its_lease() -> None:
    """Users want no second holder then, so no lock has to grant one."""
    held = history(*visit("a", 0, 0.1, 9), *visit("b", 0.3, 9.05, 10))
    assert [] == check(held, Claims(lease=2, within=2))


def test_dead_holders_place_is_free_after_a_lease() -> None:
    dead = [(0, "a", "ask", 1), (0.1, "a", "enter"), (1, "a", "died")]
    late = history(*dead, *visit("b", 0.2, 7, 8))
    assert [NOT_GIVEN] == kinds(check(late, LEASED))
    assert [] == kinds(check(late, replace(LEASED, lease=None)))
    assert [NOT_GIVEN] == [one.kind for one in check(late, replace(LEASED, lease=None))]
    assert [] == check(history(*dead, *visit("b", 0.2, 4.5, 5)), LEASED)


def test_place_that_no_newcomer_gets_is_never_free() -> None:
    dead = [(0, "a", "ask", 1), (0.1, "a", "enter"), (1, "a", "died")]
    asks = [(0.2, "b", "ask", 1), (6, "newcomer", "ask", 1), (12, "exam", "harm")]
    assert [NEVER_FREE] == kinds(check(history(*dead, *asks), replace(LEASED, within=None)))


def test_delay_counts_only_against_a_claim_or_when_it_is_long() -> None:
    a, unclaimed = visit("a", 0, 0.1, 1), Claims()
    assert [NOT_GIVEN] == kinds(check(history(*a, *visit("b", 0.2, 5, 6)), PLAIN))
    (seen,) = check(history(*a, *visit("b", 0.2, 5, 6)), unclaimed)
    assert (NOT_GIVEN, False) == (seen.kind, seen.against)
    assert [NOT_GIVEN] == kinds(check(history(*a, *visit("b", 0.2, 9, 10)), unclaimed))


def test_load_of_a_process_extends_the_time_for_a_grant() -> None:
    seen = [*visit("a", 0, 0.1, 1), *visit("b", 0.2, 4, 6)]
    assert [NOT_GIVEN] == kinds(check(history(*seen), PLAIN))
    busy = (3.5, "observer", "busy", 2.0)
    assert [] == check(history(*seen, busy), PLAIN)


def test_waiter_that_died_or_was_stopped_may_have_been_granted() -> None:
    died = [(0.2, "w", "ask", 1), (0.8, "w", "died"), *visit("a", 0, 0.1, 1)]
    seen = history(*died, *visit("b", 0.5, 4.5, 6))
    assert [NOT_GIVEN] == kinds(check(seen, Claims(lease=0.5, within=2)))
    assert [] == check(seen, Claims(lease=2, within=2))


def test_order_is_broken_by_passing_a_waiter() -> None:
    seen = [*visit("a", 0, 0.1, 1), *visit("b", 0.2, 2.5, 3), *visit("c", 0.8, 1.1, 1.5)]
    assert [ORDER] == kinds(check(history(*seen), Claims(fair=True)))
    assert [] == check(history(*seen), PLAIN)
    close = [*visit("a", 0, 0.1, 1), *visit("b", 0.7, 2.5, 3), *visit("c", 0.8, 1.1, 1.5)]
    assert [] == check(history(*close), Claims(fair=True))


def test_gap_is_the_time_from_an_end_to_the_next_entry() -> None:
    a = [(0, "a", "ask", 1), (0.1, "a", "enter"), (0.6, "a", "died")]
    assert 1.5 == pytest.approx(gap(history(*a, *visit("b", 0.2, 2.1, 3))))
    assert 0.1 == gap(history(*visit("a", 0, 0.1, 1), *visit("b", 2, 2, 3)))


# Fences, losses, answers


def test_fences_have_to_grow() -> None:
    fenced = Claims(fenced=True)
    right = history(*visit("a", 0, 0.1, 1, 7), *visit("b", 1.1, 1.2, 2, 8))
    assert [] == check(right, fenced)
    same = history(*visit("a", 0, 0.1, 1, 7), *visit("b", 1.1, 1.2, 2, 7))
    assert [FENCE] == kinds(check(same, fenced))
    (lossy,) = check(same, fenced, lossy=True)
    assert (FENCE, False) == (lossy.kind, lossy.against)
    both = history(
        *visit("a", 0, 0.1, 1, 8), *visit("b", 0, 1.2, 2, 7)
    )  # both asked at the same time
    assert [] == check(both, fenced)


def test_loss_early_in_a_lease_needs_a_reason() -> None:
    a = [*visit("a", 0, 0.1, 0.5)[:-2], (0.5, "a", "probe"), (0.5, "a", "lost")]
    hard = Claims(lease=2, told=True)
    assert [NO_REASON] == kinds(check(history(*a), TELLS))
    assert [NO_REASON] == kinds(check(history(*a), hard))
    assert [] == kinds(check(history(*a), Claims(lease=2)))
    stop = [(0.31, "a", "stopped", 0.3), (2.4, "a", "resumed", 2.4)]
    a = [*visit("a", 0, 0.1, 0.3)[:-2], *stop, (2.5, "a", "probe"), (2.5, "a", "lost")]
    assert [] == check(history(*a), TELLS)


def test_loss_in_the_second_half_of_a_lease_needs_no_reason() -> None:
    a = [*visit("a", 0, 0.1, 1.3)[:-2], (1.3, "a", "probe"), (1.3, "a", "lost")]
    assert [] == check(history(*a), Claims(lease=2, told=True))


def test_holder_that_did_not_run_may_lose_a_renewed_lease() -> None:
    a = [(0, "a", "ask", 1), (0.1, "a", "enter"), (1.2, "a", "probe"), (1.2, "a", "lost")]
    assert [] == check(history(*a), TELLS)


def test_harm_excuses_a_loss_unless_the_lock_must_survive_it() -> None:
    harm = [(0.3, "x", "harm"), (0.9, "x", "calm")]
    a = [*visit("a", 0, 0.1, 0.5)[:-2], (0.5, "a", "probe"), (0.5, "a", "lost")]
    assert [] == check(history(*harm, *a), TELLS)
    assert [NO_REASON] == kinds(check(history(*harm, *a), TELLS, keeps=True))


def test_lost_acquire_of_a_lock_that_retries_takes_no_permit_for_ever() -> None:
    harm = [(0.1, "exam", "harm", None, "a"), (1.1, "exam", "calm", None, "a")]
    lost = [(0, "a", "ask", 1), (1, "a", "gave_up")]
    alone = [(9, "b", "ask", 1, "0.5"), (9.5, "b", "gave_up")]
    events = [
        replace(one, name=one.text) if one.what in ("harm", "calm") else one
        for one in history(*harm, *lost, *alone)
    ]
    assert [REFUSED] == kinds(check(events, Claims(retries=True)))
    assert [] == kinds(check(events, Claims()))


def test_rejection_of_the_only_caller_is_found() -> None:
    no = [(2, "b", "ask", 1, "0"), (2.1, "b", "gave_up")]
    assert [REFUSED] == kinds(check(history(*visit("a", 0, 0.1, 1), *no), PLAIN))
    assert [] == check(history(*visit("a", 0, 0.1, 2.05), *no), PLAIN)
    assert [] == check(history(*visit("a", 2.05, 2.2, 3), *no), PLAIN)


def test_late_and_early_answers_count_against_punctual_locks() -> None:
    punctual, a = Claims(punctual=True), visit("a", 0, 0.1, 20)
    late = [(1, "b", "ask", 1, "2"), (6, "b", "gave_up")]
    early = [(1, "b", "ask", 1, "2"), (1.1, "b", "gave_up")]
    assert [HUNG] == kinds(check(history(*a, *late), punctual))
    assert [EARLY] == kinds(check(history(*a, *early), punctual))
    assert [] == kinds(check(history(*a, *late), PLAIN))


def test_error_is_excused_only_by_harm_to_its_worker_or_to_all() -> None:
    error = [(1, "b", "ask", 1), (1.1, "b", "error", None, "OSError: no")]
    harm = [(0.5, "x", "harm"), (1.5, "x", "calm")]
    own = [replace(one, name="c") if one.what in ("harm", "calm") else one
           for one in history(*harm, *error)]  # fmt: skip
    assert [ERROR] == kinds(check(history(*error), PLAIN))
    assert [] == check(history(*harm, *error), PLAIN)
    assert [ERROR] == kinds(check(own, PLAIN))
    retries = replace(LEASED, retries=True)
    assert [ERROR] == kinds(check(history(*harm, *error), retries, retried=True))
    assert [] == kinds(check(history(*harm, *error), LEASED, retried=True))
