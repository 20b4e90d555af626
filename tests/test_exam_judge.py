"""The judge, over histories written by hand: each finding, and the innocent case beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from exam.judge import (
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
    gap,
    judge,
)
from exam.witness import Event

PLAIN = Claims()
LEASED = Claims(lease=2, renewed=True)
TELLS = replace(LEASED, told=True)


def history(*lines: tuple[Any, ...]) -> list[Event]:
    """(at, who, what, number, text) each; everybody has a seat and a process of its own."""
    seats: dict[str, int] = {}
    made = []
    for at, who, what, *rest in sorted(lines, key=lambda line: line[0]):
        seat = seats.setdefault(who, len(seats) + 1)
        number, text = [*rest, None, ""][:2] if len(rest) < 2 else rest
        name = "" if what in ("trouble", "peace") else "x"
        made.append(Event(at, seat, 100 + seat, who, what, name, number, text or ""))
    return made


def visit(who: str, asked: float, entered: float, left: float, fence: float | None = None) -> Any:
    """A visit as it should be, asked `still` every 0.1 s."""
    steps = [entered + 0.1 * n for n in range(1, 1000) if entered + 0.1 * n < left]
    said = [(at + d, who, what) for at in steps for d, what in ((0, "probe"), (0.01, "still"))]
    return [
        (asked, who, "ask", 1),
        (entered, who, "enter", fence),
        *said,
        (left, who, "leave"),
        (left + 0.01, who, "back"),
    ]


def kinds(found: list[Finding]) -> list[str]:
    return [one.kind for one in against(found)]


@pytest.mark.parametrize("claims", [PLAIN, LEASED, TELLS])
def test_one_after_the_other_is_right(claims: Claims) -> None:
    assert [] == judge(history(*visit("a", 0, 0.1, 1), *visit("b", 0.2, 1.1, 2)), claims)


@pytest.mark.parametrize("claims", [PLAIN, LEASED, TELLS])
def test_two_inside_are_seen_with_how_long(claims: Claims) -> None:
    (found,) = judge(history(*visit("a", 0, 0.1, 1), *visit("b", 0.2, 0.5, 2)), claims)
    assert TWO_INSIDE == found.kind
    assert found.seconds == pytest.approx(0.5, abs=0.15)
    assert "a was never told" in found.text


def test_two_inside_are_allowed_by_a_limit_of_two() -> None:
    seen = [*visit("a", 0, 0.1, 1), *visit("b", 0.2, 0.5, 2), *visit("c", 0.2, 0.8, 2)]
    assert [] == judge(history(*seen[:-20]), Claims(limit=3))
    assert [TWO_INSIDE] == kinds(judge(history(*seen), Claims(limit=2)))


def test_large_permits_count() -> None:
    seen = history(*visit("a", 0, 0.1, 1), *visit("b", 0, 0.5, 1))
    large = [replace(e, number=2) if e.what == "ask" and e.who == "a" else e for e in seen]
    assert [TWO_INSIDE] == kinds(judge(large, Claims(limit=2)))


def test_a_holder_that_died_counts_up_to_its_last_word() -> None:
    """The news of its death may arrive after those of its successor."""
    seen = [(0, "a", "ask", 1), (0.1, "a", "enter"), (0.6, "a", "died")]
    assert [] == judge(history(*seen, *visit("b", 0.2, 0.5, 1)), PLAIN)


def test_a_loss_that_was_told_in_time_is_no_overlap() -> None:
    seen = visit("a", 0, 0.1, 1)[:-2]
    trouble = [(0.05, "exam", "trouble"), (0.06, "exam", "peace")]
    told = [(1, "a", "probe"), (1.1, "a", "lost")]
    other = visit("b", 0.2, 1.05, 2)  # in before the news of the loss arrived
    assert [] == judge(history(*trouble, *seen, *told, *other), TELLS)


def test_told_late_is_told_apart_from_never() -> None:
    trouble = [(0.05, "exam", "trouble"), (0.06, "exam", "peace")]
    late = [*visit("a", 0, 0.1, 1.5)[:-2], (1.5, "a", "probe"), (1.5, "a", "lost")]
    other = visit("b", 0.2, 0.7, 2)
    (found,) = judge(history(*trouble, *late, *other), TELLS)
    assert (TOLD_LATE, True) == (found.kind, found.against)
    assert "+0.80 s" in found.text


def test_after_a_loss_of_memory_holders_have_a_lease_to_be_told() -> None:
    trouble = [(0.5, "exam", "trouble"), (0.6, "exam", "peace")]
    told = [*visit("a", 0, 0.1, 1.5)[:-2], (1.5, "a", "probe"), (1.5, "a", "lost")]
    other = visit("b", 0.6, 0.7, 9)
    assert [] == kinds(judge(history(*trouble, *told, *other), TELLS, lossy=True))
    never = visit("a", 0, 0.1, 8)
    assert [NEVER_TOLD] == kinds(judge(history(*trouble, *never, *other), TELLS, lossy=True))
    (seen,) = judge(history(*trouble, *never, *other), LEASED, lossy=True)
    assert (TWO_INSIDE, False) == (seen.kind, seen.against)


def test_a_stopped_holder_is_not_inside_while_it_does_not_run() -> None:
    """And a lock that can't tell is not to blame for what a holder does past its lease."""
    stop = [(1.02, "a", "stopped", 1.0), (4.02, "a", "resumed", 4.0)]
    a = [*visit("a", 0, 0.1, 1)[:-2], *stop]
    b = visit("b", 0.2, 3.1, 3.9)
    lost = [(4.03, "a", "probe"), (4.03, "a", "lost")]
    assert [] == judge(history(*a, *b, *lost), TELLS)
    goes_on = [(4.03, "a", "probe"), (4.03, "a", "still"), (4.5, "a", "leave"), (4.6, "a", "back")]
    b = visit("b", 0.2, 3.1, 5)
    (found,) = judge(history(*a, *goes_on, *b), LEASED)
    assert (LATE, False) == (found.kind, found.against)
    assert [TWO_INSIDE] == kinds(judge(history(*a, *goes_on, *b), TELLS))


def test_a_hard_lease_ends_by_itself() -> None:
    hard = Claims(lease=2)
    seen = history(*visit("a", 0, 0.1, 3), *visit("b", 0.2, 2.1, 3.5))
    assert [] == kinds(judge(seen, hard))
    assert [LATE] == [one.kind for one in judge(seen, hard)]
    seen = history(*visit("a", 0, 0.1, 3), *visit("b", 0.2, 1.5, 3.5))
    assert [TWO_INSIDE] == kinds(judge(seen, hard))


def test_whoever_hears_of_its_lease_after_its_end_is_past_it() -> None:
    trouble = [(0.1, "a", "trouble"), (2.9, "a", "peace")]
    seen = history(*trouble, *visit("b", 0.3, 2.1, 4), *visit("a", 0, 2.8, 3.5))
    own = [replace(e, name="a") if e.what in ("trouble", "peace") else e for e in seen]
    assert [LATE] == [one.kind for one in judge(own, Claims(lease=2))]
    assert [TWO_INSIDE] == kinds(judge(own, TELLS))


def test_a_hard_lease_begins_when_it_is_granted_and_not_when_it_is_asked_for() -> None:
    hard = Claims(lease=2)
    b = visit("b", 0.2, 2.1, 3.9)
    seen = history(*visit("a", 0, 0.1, 1.9), *b, *visit("c", 2.2, 2.6, 4))
    assert [TWO_INSIDE] == kinds(judge(seen, hard))
    late = [(0.1, "x", "trouble"), (2.1, "x", "peace")]  # its answer may have been on the way
    seen = history(*late, *visit("a", 0, 0.1, 1.9), *b, *visit("c", 2.2, 2.6, 4))
    assert [] == kinds(judge(seen, hard))


def test_a_late_write_that_storage_can_tell_is_not_held_against_a_fence() -> None:
    fenced = Claims(lease=2, fenced=True)
    late = history(*visit("a", 0, 0.1, 3, 7), *visit("b", 0.2, 2.1, 3.5, 8))
    assert [] == kinds(judge(late, fenced))
    worse = history(*visit("a", 0, 0.1, 3, 7), *visit("b", 0.2, 2.1, 3.5, 7))
    assert {FENCE, LATE} == set(kinds(judge(worse, fenced))) | {FENCE}


def test_fences_grow() -> None:
    fenced = Claims(fenced=True)
    right = history(*visit("a", 0, 0.1, 1, 7), *visit("b", 1.1, 1.2, 2, 8))
    assert [] == judge(right, fenced)
    for number in (7, 6, None):
        wrong = history(*visit("a", 0, 0.1, 1, 7), *visit("b", 1.1, 1.2, 2, number))
        assert [FENCE] == kinds(judge(wrong, fenced))
    assert [] == judge(wrong, PLAIN)


def test_a_free_place_that_nobody_gets_is_seen_with_how_long() -> None:
    seen = history(*visit("a", 0, 0.1, 1), *visit("b", 0.2, 5.01, 6))
    (found,) = judge(seen, PLAIN)
    assert NOT_GIVEN == found.kind
    assert 4 == pytest.approx(found.seconds, abs=0.05)
    assert [] == judge(seen, Claims(within=4.5))


def test_time_in_which_the_witness_had_no_turn_is_nobodys_fault() -> None:
    seen = [*visit("a", 0, 0.1, 1), *visit("b", 0.2, 5.01, 6)]
    assert [] == judge(history(*seen, (4.5, "witness", "busy", 2.5)), PLAIN)
    assert [] == judge(history(*seen, (1.5, "x", "trouble"), (4.5, "x", "peace")), PLAIN)


def test_a_place_that_never_comes_back_is_seen() -> None:
    seen = [(0, "a", "ask", 1), (0.1, "a", "enter"), (0.6, "a", "died")]
    seen += [(1, "b", "ask", 1), (9, "exam", "trouble")]
    (found,) = judge(history(*seen), LEASED)
    assert NEVER_FREE == found.kind
    assert [] == judge(history(*seen), PLAIN)  # it never said that it would come back
    assert [NEVER_FREE] == kinds(judge(history(*seen), Claims(lease=0)))


def test_a_waiter_that_died_may_be_granted_first() -> None:
    seen = [(0.2, "w", "ask", 1), (0.8, "w", "died"), *visit("a", 0, 0.1, 1)]
    seen += visit("b", 0.5, 5, 6)
    assert [NOT_GIVEN] == kinds(judge(history(*seen), Claims(lease=2, dead_waiter=0)))
    assert [] == judge(history(*seen), Claims(lease=2, dead_waiter=3))


def test_a_stopped_waiter_may_be_granted_first() -> None:
    stop = [(0.52, "w", "stopped", 0.5), (4.0, "w", "resumed", 3.98), (4.1, "w", "enter")]
    seen = [(0.2, "w", "ask", 1), *stop, (4.2, "w", "leave"), (4.3, "w", "back")]
    seen += [*visit("a", 0, 0.1, 1), *visit("b", 0.4, 4.31, 5)]
    assert [] == judge(history(*seen), Claims(lease=0))
    assert [NOT_GIVEN] == kinds(judge(history(*seen), Claims(lease=0.5, renewed=True)))


def test_passing_somebody_who_waits_is_seen() -> None:
    seen = [*visit("a", 0, 0.1, 1), *visit("b", 0.2, 2.5, 3), *visit("c", 0.8, 1.1, 1.5)]
    assert [ORDER] == kinds(judge(history(*seen), Claims(fair=True)))
    assert [] == judge(history(*seen), PLAIN)
    close = [*visit("a", 0, 0.1, 1), *visit("b", 0.7, 2.5, 3), *visit("c", 0.8, 1.1, 1.5)]
    assert [] == judge(history(*close), Claims(fair=True))


def test_a_loss_without_reason_is_seen() -> None:
    a = [*visit("a", 0, 0.1, 0.5)[:-2], (0.5, "a", "probe"), (0.5, "a", "lost")]
    assert [NO_REASON] == kinds(judge(history(*a), TELLS))
    stop = [(0.31, "a", "stopped", 0.3), (2.4, "a", "resumed", 2.4)]
    a = [*visit("a", 0, 0.1, 0.3)[:-2], *stop, (2.5, "a", "probe"), (2.5, "a", "lost")]
    assert [] == judge(history(*a), TELLS)


def test_a_refusal_though_free_is_seen() -> None:
    no = [(2, "b", "ask", 1, "0"), (2.1, "b", "gave_up")]
    assert [REFUSED] == kinds(judge(history(*visit("a", 0, 0.1, 1), *no), PLAIN))
    assert [] == judge(history(*visit("a", 0, 0.1, 2.05), *no), PLAIN)
    assert [] == judge(history(*visit("a", 2.05, 2.2, 3), *no), PLAIN)


def test_coming_back_late_or_early_is_seen() -> None:
    punctual = Claims(punctual=True)
    a = visit("a", 0, 0.1, 20)
    late = [(1, "b", "ask", 1, "2"), (6, "b", "gave_up")]
    early = [(1, "b", "ask", 1, "2"), (1.1, "b", "gave_up")]
    assert [HUNG] == kinds(judge(history(*a, *late), punctual))
    assert [EARLY] == kinds(judge(history(*a, *early), punctual))
    assert [] == kinds(judge(history(*a, *late), PLAIN))


def test_an_error_is_due_in_trouble_only() -> None:
    seen = [(1, "b", "ask", 1), (1.1, "b", "error", None, "OSError: no")]
    assert [ERROR] == kinds(judge(history(*seen), PLAIN))
    assert [] == judge(history((0.5, "x", "trouble"), *seen, (1, "x", "peace")), PLAIN)


def test_harm_done_to_one_ones_messages_is_no_excuse_for_others() -> None:
    def seen(whose: str) -> list[Event]:
        made = history((0, "x", "trouble"), *visit("b", 1, 4.1, 5), (6, "x", "peace"))
        return [replace(e, name=whose) if e.what in ("trouble", "peace") else e for e in made]

    assert [] == judge(seen(""), PLAIN)
    assert [] == judge(seen("b"), PLAIN)
    assert [NOT_GIVEN] == kinds(judge(seen("c"), PLAIN))


def test_harm_that_is_no_reason_to_lose_a_lease_excuses_no_loss() -> None:
    trouble = [(0.3, "x", "trouble"), (0.9, "x", "peace")]
    a = [*visit("a", 0, 0.1, 0.5)[:-2], (0.5, "a", "probe"), (0.5, "a", "lost")]
    assert [] == judge(history(*trouble, *a), TELLS)
    assert [NO_REASON] == kinds(judge(history(*trouble, *a), TELLS, keeps=True))


def test_a_lock_that_retries_has_no_reason_for_an_error() -> None:
    retries = Claims(lease=2, renewed=True, retries=True)
    trouble = [(0.0, "x", "trouble"), (3, "x", "peace")]
    asked = history(*trouble, (1, "b", "ask", 1), (1.1, "b", "error", None, "OSError: no"))
    back = history(*trouble, *visit("a", 0, 0.1, 1)[:-1], (1.1, "a", "error", None, "OSError: no"))
    assert [] == kinds(judge(asked, retries, keeps=True))
    assert [ERROR] == kinds(judge(asked, retries, retried=True))
    assert [ERROR] == kinds(judge(back, retries, keeps=True))
    assert [] == kinds(judge(asked, LEASED, retried=True))


def test_the_gap_is_from_the_end_of_one_to_the_beginning_of_the_next() -> None:
    a = [(0, "a", "ask", 1), (0.1, "a", "enter"), (0.6, "a", "died")]
    assert 1.5 == pytest.approx(gap(history(*a, *visit("b", 0.2, 2.1, 3))))
    assert 0.1 == gap(history(*visit("a", 0, 0.1, 1), *visit("b", 2, 2, 3)))
