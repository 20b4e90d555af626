"""Compare the observations of the demo's scenarios with what is expected, and list the faults."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from example_project.demo.traffic import Answer
from example_project.shop.witness import Visit

NOTICED = 0.05  # a request waited if it entered more than these seconds after its arrival
# Two requests that arrive or enter within these seconds need no order: threads can wake up late.
ORDER_SLACK = 0.25
LEASE_SLACK = 0.5  # max seconds by which polling and a busy machine may delay the end of a lease


@dataclass(frozen=True)
class Verdict:
    """The observations and the faults of one scenario."""

    seen: tuple[str, ...]
    faults: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if there are no faults."""
        return not self.faults


@dataclass(frozen=True)
class SaleSeen:
    """A flash sale: the answers to its buyers, and the tickets and stock in the database."""

    buyers: int
    tickets: int
    answers: Sequence[Answer]
    sold: Sequence[tuple[int, int]]  # ticket number, worker
    stock: int


@dataclass(frozen=True)
class ExportsSeen:
    """Many export requests: the answers, and the requests that the witness saw inside a view."""

    limit: int
    requests: int
    in_line: str  # path of the page whose requests wait for a permit
    answers: Sequence[Answer]
    visits: Sequence[Visit]


@dataclass(frozen=True)
class KillSeen:
    """What the demo observed when it killed a worker that held the only permit."""

    lease: float
    before: Answer  # the answer to a request that came while the worker held the permit
    first: Answer | None = None  # the answer that the killed worker's client got
    back: float | None = None  # seconds until the next request was admitted; None if never
    peak: int = 0  # max number of requests inside the view at once


def judge_sale(case: SaleSeen) -> Verdict:
    """Expect that each ticket was sold once, and that all other buyers got "sold out"."""
    statuses = Counter(answer.status for answer in case.answers)
    numbers = Counter(number for number, _ in case.sold)
    doubles = sum(1 for count in numbers.values() if count > 1)
    workers = len({worker for _, worker in case.sold})
    count = len(case.sold)
    seen = (
        f"{count} of {case.tickets} tickets sold, none twice, by {_many(workers, 'worker')}",
        f'{statuses[409]} buyers got "sold out"',
    )
    faults = _faults(
        (count != case.tickets, f"{count} of {case.tickets} tickets were sold"),
        (doubles > 0, f"{_many(doubles, 'ticket number')} sold to several buyers"),
        (case.stock != 0, f"the stock is {case.stock} after the sale, not 0"),
        (statuses[200] != count, f"{statuses[200]} buyers got a ticket, but {count} were sold"),
        *_odd_answers(statuses, {200, 409}, case.buyers),
    )
    return Verdict(seen, faults)


def judge_exports(case: ExportsSeen) -> Verdict:
    """Expect `limit` requests at once, waiters in order, and rejections with Retry-After."""
    statuses = Counter(answer.status for answer in case.answers)
    rejected = [answer for answer in case.answers if answer.status == 503]
    silent = sum(1 for answer in rejected if not answer.says_when_to_retry)
    sent_away = sum(1 for answer in rejected if answer.path == case.in_line)
    peak = max((visit.inside for visit in case.visits), default=0)
    longest = max((visit.waited for visit in case.visits), default=0)
    line = [visit for visit in case.visits if visit.who == case.in_line]
    waited = sum(1 for visit in line if visit.waited > NOTICED)
    overtaken = count_overtaken(line)
    workers = len({visit.pid for visit in case.visits})
    served = statuses[200]
    seen = (
        f"at most {peak} requests at once, over {_many(workers, 'worker')} in total",
        f"{served} served: {waited} waited, in order, up to {longest:.1f} s",
        f"{len(rejected)} rejected with Retry-After",
    )
    faults = _faults(
        (peak > case.limit, f"{peak} requests at once exceed the limit {case.limit}"),
        (peak < case.limit, f"only {peak} requests at once, but the limit is {case.limit}"),
        (served != len(case.visits), f"{served} were served, but {len(case.visits)} were admitted"),
        (not rejected, "no request was rejected"),
        (silent > 0, f"{_many(silent, 'rejection')} without Retry-After"),
        (sent_away > 0, f"{sent_away} waiters were rejected"),
        (not waited, "no request waited"),
        (overtaken > 0, f"{overtaken} waiters were overtaken"),
        *_odd_answers(statuses, {200, 503}, case.requests),
    )
    return Verdict(seen, faults)


def judge_kill(case: KillSeen) -> Verdict:
    """Expect a rejection while the worker holds the permit, and a grant when its lease expires."""
    if case.before.status == 200:
        return Verdict((), ("a second request was admitted while the first held the only permit",))
    back = "never" if case.back is None else f"after {case.back:.1f} s"
    late = case.back is None or case.back > case.lease + LEASE_SLACK
    seen = (
        "a request was rejected while the worker held the permit",
        f"the killed worker's permit became free {back} (lease: {case.lease:g} s)",
    )
    faults = _faults(
        (case.before.status != 503, f"the second request got status {case.before.status}, not 503"),
        (not case.before.says_when_to_retry, "the rejection had no Retry-After"),
        (case.first is None or case.first.status != 0, "the killed worker answered"),
        (late, f"the permit became free {back}, but the lease is {case.lease:g} s"),
        (case.peak != 1, f"{case.peak} requests were admitted at once, but the limit is 1"),
    )
    return Verdict(seen, faults)


def count_overtaken(line: Iterable[Visit]) -> int:
    """Return the number of requests that a later request overtook by more than ORDER_SLACK."""
    pairs = combinations(sorted(line, key=lambda visit: visit.arrived), 2)
    overtaken = {
        first
        for first, second in pairs
        if second.arrived > first.arrived + ORDER_SLACK
        and second.entered < first.entered - ORDER_SLACK
    }
    return len(overtaken)


def _faults(*checks: tuple[bool, str]) -> tuple[str, ...]:
    """Return the texts of all faults. A check is a tuple: True if there is a fault, and the text
    for this fault."""
    return tuple(text for found, text in checks if found)


def _odd_answers(
    statuses: Counter[int], expected: set[int], asked: int
) -> Iterable[tuple[bool, str]]:
    """Yield checks for `_faults`: a check for each unexpected status, and a check that all requests
    were answered. `asked`: number of requests."""
    for status in sorted(statuses.keys() - expected):
        what = f"status {status}" if status else "no answer"
        yield True, f"{_many(statuses[status], 'request')} got {what}"
    yield statuses.total() != asked, f"{statuses.total()} answers to {asked} requests"


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
