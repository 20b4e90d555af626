"""Judges what was seen. Pure: evidence in, verdict out; missing evidence is a fault as well."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from example_project.demo.traffic import Answer
from example_project.shop.witness import Visit

NOTICED = 0.05  # seconds: a longer wait than this is one in line
# Overtaking by less than this is not told from threads that were woken late.
ORDER_SLACK = 0.25
LEASE_SLACK = 0.5  # the polling, and a busy machine


@dataclass(frozen=True)
class Verdict:
    """What was seen in one scenario, and what was wrong with it (nothing, if all is well)."""

    seen: tuple[str, ...]
    faults: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether it holds."""
        return not self.faults


@dataclass(frozen=True)
class SaleSeen:
    """A flash sale: the answers to its buyers, and what the database says."""

    buyers: int
    tickets: int
    answers: Sequence[Answer]
    sold: Sequence[tuple[int, int]]  # ticket number, worker
    stock: int


@dataclass(frozen=True)
class ExportsSeen:
    """A rush at the exports: the answers, and who was inside by the witness."""

    limit: int
    requests: int
    in_line: str  # the page that waits
    answers: Sequence[Answer]
    visits: Sequence[Visit]


@dataclass(frozen=True)
class KillSeen:
    """The killing of a worker that held the only permit."""

    lease: float
    before: Answer  # to a second request, while the first held the permit
    first: Answer | None = None  # what the client of the killed one got
    back: float | None = None  # seconds until the next request was let in; None when never
    peak: int = 0  # most inside at once


def judge_sale(case: SaleSeen) -> Verdict:
    """Every ticket sold, none twice, and everybody else told so."""
    statuses = Counter(answer.status for answer in case.answers)
    numbers = Counter(number for number, _ in case.sold)
    doubles = sum(1 for count in numbers.values() if count > 1)
    workers = len({worker for _, worker in case.sold})
    count = len(case.sold)
    seen = (
        f"{count} of {case.tickets} tickets sold, none twice, by {_many(workers, 'worker')}",
        f"{statuses[409]} buyers told: sold out",
    )
    faults = _faults(
        (count != case.tickets, f"{count} tickets sold of {case.tickets}"),
        (doubles > 0, f"{_many(doubles, 'ticket number')} sold more than once"),
        (case.stock != 0, f"the stock ended at {case.stock}"),
        (statuses[200] != count, f"{statuses[200]} buyers were told that they got one"),
        *_odd_answers(statuses, {200, 409}, case.buyers),
    )
    return Verdict(seen, faults)


def judge_exports(case: ExportsSeen) -> Verdict:
    """Never more inside than the limit; the others refused with `Retry-After`, or in order."""
    statuses = Counter(answer.status for answer in case.answers)
    refused = [answer for answer in case.answers if answer.status == 503]
    silent = sum(1 for answer in refused if not answer.says_when_to_retry)
    sent_away = sum(1 for answer in refused if answer.path == case.in_line)
    peak = max((visit.inside for visit in case.visits), default=0)
    longest = max((visit.waited for visit in case.visits), default=0)
    line = [visit for visit in case.visits if visit.who == case.in_line]
    waited = sum(1 for visit in line if visit.waited > NOTICED)
    overtaken = count_overtaken(line)
    workers = len({visit.pid for visit in case.visits})
    served = statuses[200]
    seen = (
        f"at most {peak} inside at any moment, in {_many(workers, 'worker')}",
        f"{served} served: {waited} waited in line, in order, up to {longest:.1f} s",
        f"{len(refused)} refused with Retry-After",
    )
    faults = _faults(
        (peak > case.limit, f"{peak} inside at once, the limit is {case.limit}"),
        (peak < case.limit, f"only {peak} inside at once: the limit was not tried"),
        (served != len(case.visits), f"{served} served, but {len(case.visits)} were inside"),
        (not refused, "nobody was refused"),
        (silent > 0, f"{_many(silent, 'refusal')} without Retry-After"),
        (sent_away > 0, f"{sent_away} in line were refused"),
        (not waited, "nobody had to wait"),
        (overtaken > 0, f"{overtaken} in line were overtaken"),
        *_odd_answers(statuses, {200, 503}, case.requests),
    )
    return Verdict(seen, faults)


def judge_kill(case: KillSeen) -> Verdict:
    """Refused while the permit was held, let in when the dead worker's lease was over."""
    if case.before.status == 200:
        return Verdict((), ("a second request was let in while the first was inside",))
    back = "never" if case.back is None else f"after {case.back:.1f} s"
    late = case.back is None or case.back > case.lease + LEASE_SLACK
    seen = (
        "refused while the worker held the permit",
        f"worker killed: permit back {back}, the lease is {case.lease:g} s",
    )
    faults = _faults(
        (case.before.status != 503, f"the next request got {case.before.status}, not 503"),
        (not case.before.says_when_to_retry, "the refusal had no Retry-After"),
        (case.first is None or case.first.status != 0, "the killed worker answered all the same"),
        (late, f"the permit came back {back}, the lease is {case.lease:g} s"),
        (case.peak != 1, f"{case.peak} inside at once, the limit is 1"),
    )
    return Verdict(seen, faults)


def count_overtaken(line: Iterable[Visit]) -> int:
    """How many saw somebody get in before them who had come clearly later."""
    pairs = combinations(sorted(line, key=lambda visit: visit.arrived), 2)
    overtaken = {
        first
        for first, second in pairs
        if second.arrived > first.arrived + ORDER_SLACK
        and second.entered < first.entered - ORDER_SLACK
    }
    return len(overtaken)


def _faults(*checks: tuple[bool, str]) -> tuple[str, ...]:
    """The texts of the checks that found something."""
    return tuple(text for found, text in checks if found)


def _odd_answers(
    statuses: Counter[int], expected: set[int], asked: int
) -> Iterable[tuple[bool, str]]:
    """A check for every status that nobody should have got, and one that all were answered."""
    for status in sorted(statuses.keys() - expected):
        what = f"status {status}" if status else "no answer"
        yield True, f"{_many(statuses[status], 'request')} got {what}"
    yield statuses.total() != asked, f"{statuses.total()} answers to {asked} requests"


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
