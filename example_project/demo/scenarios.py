"""The three scenarios of the demo. Each scenario runs against each server.

The results come from the witness, which counts requests inside views, and from the database, which
has the sold tickets. Both work without Redis.
"""

import os
import signal
import time
from collections.abc import Sequence

import httpx
from django.conf import settings

from example_project.demo.judging import (
    ExportsSeen,
    KillSeen,
    SaleSeen,
    Verdict,
    judge_exports,
    judge_kill,
    judge_sale,
)
from example_project.demo.report import Each, Show
from example_project.demo.site import Server
from example_project.demo.traffic import (
    Answer,
    PageRequest,
    answer_of,
    burst,
    client_options,
    in_thread,
)
from example_project.shop.models import Sale
from example_project.shop.sales import TICKETS, open_sale
from example_project.shop.views import EXPORT_LIMIT, EXPORTS, SLOW_EXPORTS
from example_project.shop.witness import Visit

BUYERS = 50
# Seconds between the arrivals of two buyers. If all buyers arrived at once, a single event loop
# would accept all connections.
BUYERS_SPREAD = 0.003

EXPORT_REQUESTS = 60
EXPORT_SPREAD = 0.015  # seconds between two requests: shorter than an export

LEASE = settings.LEASE_SECONDS
HOLD_SECONDS = 20  # the slow request lasts until after the kill of its worker
HOLD_BEFORE_KILL = 0.7  # seconds from the second request's answer to the kill
POLL_SECONDS = 0.05
GIVE_UP_SECONDS = 10.0


class Unjudged(Exception):
    """A scenario can't be judged, because an observation is missing. The message says which."""


def play_all(servers: Sequence[Server], show: Show) -> dict[tuple[str, str], Verdict]:
    """Run each scenario against each server. Return a dict: (title, server name) -> verdict."""
    for server in servers:
        _warm_up(server)
    verdicts = {}
    for title, play in SCENARIOS.items():
        for server in servers:
            try:
                verdict = play(server, show)
            except Exception as error:  # an error in a scenario counts as a fault
                verdict = Verdict((), (f"not judged: {type(error).__name__}: {error}",))
            verdicts[title, server.name] = verdict
    return verdicts


def play_sale(server: Server, show: Show) -> Verdict:
    """Scenario a: let fifty buyers buy at once, but sell only ten tickets."""
    sale = open_sale()
    page = f"{server.prefix}/sale/"
    asks = [
        PageRequest(page, {"buyer": f"buyer {number + 1}"}, delay=number * BUYERS_SPREAD)
        for number in range(BUYERS)
    ]
    with show.step(f"flash sale, {server.name}", len(asks), "requests") as each:
        answers = burst(server.url, asks, each)
    sale = Sale.objects.get(pk=sale.pk)
    sold = list(sale.sold.values_list("number", "worker"))
    return judge_sale(SaleSeen(BUYERS, TICKETS, answers, sold, sale.stock))


def play_exports(server: Server, show: Show) -> Verdict:
    """Scenario b: send sixty requests to two export pages, which share a limit of three. If the
    limit is reached, one page lets requests wait, and the other page rejects them."""
    now, in_line = f"{server.prefix}/exports/now/", f"{server.prefix}/exports/in-line/"
    asks = [
        PageRequest(now if number % 3 == 2 else in_line, delay=number * EXPORT_SPREAD)
        for number in range(EXPORT_REQUESTS)
    ]
    EXPORTS.forget()
    with show.step(f"exports, {server.name}", len(asks), "requests") as each:
        answers = burst(server.url, asks, each)
    visits = EXPORTS.visits()
    return judge_exports(ExportsSeen(EXPORT_LIMIT, EXPORT_REQUESTS, in_line, answers, visits))


def play_kill(server: Server, show: Show) -> Verdict:
    """Scenario c: kill the worker that holds the only permit. Then repeat a request until it is
    admitted."""
    page = f"{server.prefix}/exports/slow/"
    SLOW_EXPORTS.forget()
    with (
        show.step(f"killed worker, {server.name}", LEASE, "seconds") as each,
        httpx.Client(**client_options(server.url)) as client,
    ):
        first = in_thread(lambda: _ask_alone(server.url, f"{page}?seconds={HOLD_SECONDS}"))
        holder = _holder(server)
        before = _ask(client, f"{page}?seconds=0")
        time.sleep(HOLD_BEFORE_KILL)
        os.kill(holder.pid, signal.SIGKILL)
        if before.status == 200:  # admitted although the permit was held: a fault
            return judge_kill(KillSeen(LEASE, before))
        back = _back_after(client, f"{page}?seconds=0", each)
        peak = max((visit.inside for visit in SLOW_EXPORTS.visits()), default=0)
        answer = first.result(timeout=GIVE_UP_SECONDS)
        return judge_kill(KillSeen(LEASE, before, answer, back, peak))


SCENARIOS = {
    f"a. Flash sale: {BUYERS} buyers at once, {TICKETS} tickets": play_sale,
    f"b. Exports: {EXPORT_REQUESTS} requests, limit {EXPORT_LIMIT}": play_exports,
    "c. A worker killed with SIGKILL while it holds a permit": play_kill,
}


def _warm_up(server: Server) -> None:
    """Let all workers import their code. Wait while leases of an earlier demo hold all permits."""
    end = time.monotonic() + LEASE + GIVE_UP_SECONDS
    pages = ["/exports/now/", "/exports/slow/?seconds=0", "/sale/"]
    for page in pages:
        asks = [PageRequest(server.prefix + page)] * 4 * server.workers
        # Repeat while all answers are 503 (no permit is free). The scenarios report other errors.
        while {answer.status for answer in burst(server.url, asks, lambda: None)} == {503}:
            if time.monotonic() > end:
                return
            time.sleep(POLL_SECONDS)


def _holder(server: Server) -> Visit:
    """Wait until a worker of this server holds the permit. Return the witness's record of the
    request that holds it."""
    end = time.monotonic() + GIVE_UP_SECONDS
    while time.monotonic() < end:
        for visit in SLOW_EXPORTS.present():
            if visit.parent == server.process.pid:
                return visit
        time.sleep(0.02)
    raise Unjudged("no worker of the server got the permit")


def _back_after(client: httpx.Client, page: str, each: Each) -> float | None:
    """Send requests until a request is admitted. Return the seconds until then. Return None if no
    request is admitted within LEASE + GIVE_UP_SECONDS. After each request, call `each` with the
    seconds since the previous request."""
    start = last = time.monotonic()
    while last - start < LEASE + GIVE_UP_SECONDS:
        answer = _ask(client, page)
        now = time.monotonic()
        each(now - last)
        last = now
        if answer.status == 200:
            return now - start
        time.sleep(POLL_SECONDS)
    return None


def _ask_alone(url: str, page: str) -> Answer:
    """Send a request with a client of its own."""
    with httpx.Client(**client_options(url)) as client:
        return _ask(client, page)


def _ask(client: httpx.Client, page: str) -> Answer:
    try:
        return answer_of(client.get(page))
    except httpx.TransportError:
        return Answer(page.partition("?")[0], 0)
