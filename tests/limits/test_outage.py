"""While Redis is down, on_outage applies, no request waits for Redis, and the limits hold.

Redis also counts as down if it rejects the client for its password, permissions, certificate, or
database number. Such an outage lasts until its cause is corrected. So the log repeats the cause.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import re
import signal
import socketserver
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from io import StringIO

import pytest
import redis
from django.test import RequestFactory

from django_redis_sync import Lease, Lock, Semaphore, Unavailable, semaphore_required
from django_redis_sync.limits import breaker
from django_redis_sync.signals import outage_changed
from tests.behaviour.both import eventually
from tests.behaviour.proxy import proxied
from tests.behaviour.watching import counted
from tests.request_site import gate
from tests.request_site.project import (
    BOTH,
    EVERYWHERE,
    MIDDLEWARE,
    arespond_ok,
    in_use,
    reasons,
    received,
    respond_ok,
    status_of,
    waiting,
)
from tests.request_site.server import Site
from tests.support.commands import locks
from tests.support.interrupting import Interrupted

pytestmark = [pytest.mark.promise(24), pytest.mark.outages]


@pytest.fixture
def server(new_server, project):
    """A Redis server of the project that the test can stop."""
    server = new_server()
    project.use_redis(server.url)
    return server


@pytest.fixture
def link(server, project):
    """A proxy to the server, which can lose, delay, and reject messages."""
    with proxied("127.0.0.1", server.port) as proxy:
        project.use_redis(proxy.url)
        yield proxy


@pytest.fixture
def changes():
    """Return a function. It lists the argument `down` of each `outage_changed` signal so far."""
    # An earlier test may have begun an outage, whose signals are still being sent.
    eventually(lambda: not any(one.name == "redis-sync-callbacks" for one in threading.enumerate()))
    with received(outage_changed) as signals:
        yield lambda: [signal["down"] for signal in signals]


@pytest.fixture
def fast_probes(monkeypatch):
    monkeypatch.setattr(breaker, "PROBE_INTERVAL", 0.05)


@pytest.fixture
def begin_outage(project, link):
    """Return a function that begins an outage. During an outage, /trigger/ responds with 503."""
    project.limit("trigger", name="trigger", on_outage="closed")

    def begin():
        link.cause("refuse", "", times=1000)
        assert 503 == project.status("trigger")
        link.calm()

    return begin


# on_outage


@pytest.mark.parametrize(
    ("options", "statuses"),
    [
        ({"on_outage": "local"}, [200, 200, 503]),
        ({"on_outage": "open"}, [200, 200, 200]),
        ({"on_outage": "closed"}, [503, 503, 503]),
        ({"on_outage": "closed", "enforce": False}, [200, 200, 200]),
        ({"on_outage": "local", "enforce": False}, [200, 200, 200]),
    ],
)
@EVERYWHERE
def test_option_on_outage_decides_which_requests_are_admitted(
    project, rejections, options, statuses
):
    project.lose_redis()
    project.limit(limit=2, **options)
    visits = []
    for _ in statuses:
        visits.append(project.visit())
        eventually(lambda: visits[-1].inside.is_set() or visits[-1].ended)
    assert statuses == [visit.end() for visit in visits]
    reason = "outage" if options["on_outage"] == "closed" else "full"
    assert [reason] * statuses.count(503) == reasons(rejections)
    assert statuses[0] == project.status(), "a local permit was not released"


@BOTH
def test_requests_that_wait_during_an_outage_are_admitted_in_order(project, rejections):
    option = "max_waiting_tasks" if project.asgi else "max_waiting_threads"
    project.configure(REQUESTS={option: 2})
    project.lose_redis()
    project.limit(blocking_timeout=30, max_waiters=2)
    project.limit("more", blocking_timeout=30, max_waiters=9)
    project.limit("hasty", blocking_timeout=0.1, max_waiters=9)
    project.limit("now", max_waiters=9)
    visits = [project.visit().entered()]

    def all_wait():
        assert 503 == project.status("now")
        return len(visits) - 1 == rejections.pop()["rejection"].waiting

    for _ in range(2):
        visits.append(project.visit())
        eventually(all_wait)
    assert [503, 503] == [project.status(at) for at in ("home", "more")]
    # The rejections contain the number of waiters, because Retry-After is computed from it.
    found = [(sent["rejection"].reason, sent["rejection"].waiting) for sent in rejections]
    assert [("full", 2), (option, 2)] == found
    for earlier, later in itertools.pairwise(visits):
        assert 200 == earlier.end()
        later.entered()
    assert 503 == project.status("hasty")
    assert ["timeout"] == reasons(rejections)[-1:]
    assert [200, 200] == [visits[-1].end(), project.status("now")]


def interrupt(*_):
    raise Interrupted


@pytest.mark.promise(6)
@BOTH
def test_interrupted_waiter_is_removed_from_the_queue_while_its_error_exists(project):
    """An error reporter may keep the error, and the error keeps the frames of the wait."""
    project.lose_redis()
    project.limit()
    holder = project.visit().entered()
    limited = semaphore_required("one", limit=1, blocking_timeout=30)

    async def cancelled():
        await asyncio.wait_for(limited(arespond_ok)(RequestFactory().get("/")), 0.3)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises((Interrupted, asyncio.TimeoutError)) as reference:
            if project.asgi:
                asyncio.run(cancelled())
            else:
                signal.setitimer(signal.ITIMER_REAL, 0.3)
                status_of(limited(respond_ok))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert 200 == holder.end()
    assert 200 == project.status(), "the interrupted waiter was admitted"
    assert reference


@pytest.mark.promise(6)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_request_that_is_interrupted_during_an_outage_keeps_no_permit(project):
    """A signal handler can raise its exception wherever CPython checks for signals."""
    project.lose_redis()
    view = semaphore_required("one", limit=1)(respond_ok)
    assert 200 == status_of(view)
    interruptions, end, visiting = 0, time.monotonic() + 2, False

    def interrupt_limits(_, frame):
        if visiting and "/limits/" in frame.f_code.co_filename:
            raise Interrupted
        if visiting:  # if this handler was interrupted itself, let it end first
            is_nested = frame.f_code is interrupt_limits.__code__
            signal.setitimer(signal.ITIMER_REAL, 0.0005 if is_nested else 0.00001)

    def visit_until_interrupted():
        # A separate function runs the loop. If the loop were inside the `try` itself, CPython 3.13
        # might raise Interrupted after the end of the `try`.
        request = RequestFactory().get("/")
        signal.setitimer(signal.ITIMER_REAL, 0.00005)
        late = time.monotonic() + 0.05  # stop then, as a weakref callback can swallow Interrupted
        while time.monotonic() < late:
            view(request)

    before = signal.signal(signal.SIGALRM, interrupt_limits)
    try:
        while time.monotonic() < end:
            visiting = True
            try:
                visit_until_interrupted()
            except Interrupted:
                interruptions += 1
            visiting = False  # from here on, `interrupt_limits` has no effect
            assert 200 == status_of(view), interruptions
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interruptions > 100


# The start and the end of an outage


def test_outage_is_logged_once_when_many_permits_are_held(project, server, changes, caplog):
    caplog.set_level(logging.INFO, "django_redis_sync")
    visits = []
    for project.asgi in (False, True):
        project.limit(limit=20, timeout=6)
        visits += [project.visit().entered() for _ in range(6)]
    server.kill()
    assert [200] * 5 == [project.status() for _ in range(5)]
    assert [200] * 6 == [visit.end() for visit in visits[::2]]
    eventually(lambda: "could not be renewed" in caplog.text)
    server.restart()
    eventually(lambda: project.status() == 200 and changes() == [True, False])
    eventually(lambda: "are renewed again" in caplog.text)
    assert [200] * 6 == [visit.end() for visit in visits[1::2]]
    lines = [line for line in caplog.messages if "'default'" in line or "'one'" in line]
    # The restarted server has no data. Ignore the messages about the leases that were lost.
    lines = [line for line in lines if "lost its permit" not in line]
    once = ("is down", "could not be renewed", "are renewed again", "is available again")
    assert [1, 1, 1, 1] == [sum(words in line for line in lines) for words in once], lines
    assert 4 == len(lines), lines


@BOTH
def test_requests_do_not_ask_a_server_that_is_known_to_be_down(project, link):
    """Only probes contact a server that is down. After a probe gets an answer, one request asks
    Redis."""
    project.limit(limit=100)
    link.cause("swallow", times=1000)
    assert 200 == project.status()
    start = time.monotonic()
    with ThreadPoolExecutor(8) as threads:
        while len(link.done) < 3:
            assert {200} == {*threads.map(lambda _: project.status(), range(16))}
    probes = (time.monotonic() - start) / breaker.PROBE_INTERVAL + 1
    assert len(link.done) - 1 <= probes, "more than one request after a probe"
    probers = [one for one in threading.enumerate() if "redis-sync-probe" in one.name]
    assert probers and all(one.daemon for one in probers), "a probe would keep the process alive"


def test_request_does_not_call_release_if_an_outage_began_after_its_admission(
    project, server, monkeypatch
):
    released = []
    monkeypatch.setattr(Lease, "release", released.append)
    project.limit()
    before = project.visit().entered()
    server.pause()
    assert [503, 200] == [project.status(), before.end()]
    assert [] == released
    server.resume()
    eventually(lambda: in_use() == 0)


@BOTH
def test_limit_holds_for_requests_from_before_and_during_an_outage_together(
    project, link, changes, fast_probes
):
    project.limit(limit=2)
    project.limit("waits", limit=2, blocking_timeout=30)
    project.limit("shadow", limit=2, enforce=False)
    before = project.visit().entered()
    link.cause("refuse", "", times=1000)
    during = project.visit().entered()
    assert 503 == project.status()
    waits = project.visit("waits")
    assert 200 == before.end()
    waits.entered()
    link.calm()
    for _ in range(20):  # for 0.4 s: locally admitted requests still fill the limit
        assert 503 == project.status()
        time.sleep(0.02)
    assert [200, 200] == [project.status("shadow"), waits.end()]
    with Semaphore("one", 2), Semaphore("one", 2):  # these stand for holders in other processes
        eventually(lambda: project.status("shadow") and changes() == [True, False])
        assert 503 == project.status()
    assert [200, 200] == [project.status(), during.end()]
    eventually(lambda: in_use() == 0)
    visits = [project.visit().entered() for _ in range(2)]
    assert 503 == project.status()
    assert [200, 200] == [visit.end() for visit in visits]


@pytest.mark.parametrize("on_outage", ["local", "open"])
@BOTH
def test_share_limit_counts_requests_that_were_admitted_during_an_outage(
    project, link, changes, fast_probes, on_outage
):
    def tenant_of(request):
        return request.GET.get("tenant")

    project.limit(limit=4, share=tenant_of, share_limit=1, on_outage=on_outage)
    link.cause("refuse", "", times=1000)
    during = project.visit(tenant="a").entered()
    assert 200 == project.status(tenant="b")
    link.calm()
    eventually(lambda: project.status(tenant="b") == 200 and changes() == [True, False])
    statuses = [project.status(tenant=tenant) for tenant in "ab"]
    assert [429, 200] == statuses, "a share got more permits than its share_limit, or none"
    assert [200, 200] == [during.end(), project.status(tenant="a")]


def test_local_permit_is_released_if_redis_fails_again_after_an_outage(
    project, link, changes, fast_probes, begin_outage
):
    """The outage ends while a locally admitted request runs. Until that request ends, each other
    request first gets a local permit, and then asks Redis. It counts only once."""
    project.limit(limit=3)
    begin_outage()
    during = project.visit().entered()
    eventually(lambda: project.status() == 200 and changes() == [True, False])
    both = [project.visit().entered() for _ in range(2)]
    assert (503, 2) == (project.status(), in_use())
    assert [200, 200] == [visit.end() for visit in both]
    link.cause("refuse", times=4)
    assert [200, 200, 200] == [project.status() for _ in range(3)]
    assert 200 == during.end()


def test_outage_ends_when_its_trial_request_begins_to_wait_for_a_permit(
    project, changes, fast_probes, begin_outage
):
    project.limit(blocking_timeout=30, on_outage="closed")

    def trial():
        visit = project.visit()
        eventually(lambda: visit.ended or changes() == [True, False])
        return None if visit.ended else visit

    with Semaphore("one", 1):
        begin_outage()
        waits = eventually(trial)
        assert 1 == waiting()
    assert 200 == waits.end()


def test_late_success_of_an_earlier_request_does_not_end_an_outage(
    project, link, changes, monkeypatch, begin_outage
):
    monkeypatch.setattr(breaker, "PROBE_INTERVAL", 60)
    project.limit(limit=9)
    link.cause("late")
    early = project.visit()
    eventually(lambda: link.done)
    begin_outage()
    link.let_go()
    assert [200, 503] == [early.entered().end(), project.status("trigger")]
    assert [True] == eventually(changes)


def test_late_failure_of_an_earlier_request_does_not_start_another_outage(
    project, link, changes, fast_probes, begin_outage
):
    project.limit(limit=9)
    assert 200 == project.status()
    link.cause("swallow")
    early = project.visit()  # this request fails after half a second
    eventually(lambda: link.done)
    begin_outage()
    eventually(lambda: project.status("trigger") == 200)
    assert [200, 200] == [early.entered().end(), project.status("trigger")]
    eventually(lambda: changes() == [True, False])


def test_changes_of_an_outage_are_reported_in_order_if_a_receiver_is_slow(
    project, fast_probes, begin_outage
):
    """Two outages have ended when the receiver continues with the begin of the first."""
    reported, go = list[bool](), threading.Event()

    def slow(down, **_):
        go.wait(60)
        reported.append(down)

    outage_changed.connect(slow)
    try:
        for _ in range(2):
            begin_outage()
            eventually(lambda: project.status("trigger") == 200)
        go.set()
        eventually(lambda: len(reported) == 4)
    finally:
        go.set()
        outage_changed.disconnect(slow)
    assert [True, False, True, False] == reported


@pytest.mark.promise(30)
@pytest.mark.parametrize("setting", ["REDIS_SYNC", "CACHES"])
def test_outage_ends_when_settings_are_changed(project, begin_outage, setting):
    begin_outage()
    assert 503 == project.status("trigger")
    setattr(project.settings, setting, {**getattr(project.settings, setting)})
    assert 200 == project.status("trigger")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system can't fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_child_inherits_no_outage_and_no_request_from_its_parent(project, begin_outage):
    project.limit()
    begin_outage()
    visit = project.visit().entered()
    assert [503, 503] == [project.status(at) for at in ("home", "trigger")]
    pid, admitted = os.fork(), False
    if pid == 0:
        try:
            admitted = [200, 200] == [project.status(at) for at in ("home", "trigger")]
        finally:
            os._exit(0 if admitted else 1)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert 200 == visit.end()


def test_few_requests_ask_redis_while_it_hangs_and_the_limit_is_kept(
    new_server, tmp_path, clean_redis
):
    server = new_server()
    endpoints = {"quick": {"limit": 3}, "reports:list": {"limit": 1, "on_outage": "closed"}}
    options = {"redis": server.url, "middleware": [MIDDLEWARE], "sync": {"ENDPOINTS": endpoints}}

    def ask(client, number):
        for _ in range(number):
            assert client.get("/quick/").status_code in (200, 503)

    with (
        Site("gunicorn", tmp_path / "log", **options) as site,
        redis.Redis.from_url(server.url) as redis_client,
        contextlib.ExitStack() as stack,
        ThreadPoolExecutor(6) as threads,
    ):
        # Each thread has its own client, because in a shared one, a thread may close the connection
        # of another thread.
        clients = [stack.enter_context(site.client()) for _ in range(6)]

        def load(number):
            list(threads.map(ask, clients, [number] * 6))

        load(20)
        with counted(redis_client) as sent:
            server.pause()
            load(4)  # some of these requests notice the outage
            load(60)
            assert 503 == site.get("/reports/list/").status_code
            server.resume()
            eventually(lambda: site.get("/reports/list/").status_code == 200)
        load(10)
        assert 3 >= gate.peak("quick")
    asked = sent["eval"] + sent["evalsha"]
    assert asked < 36, f"{asked} commands for 385 requests were sent to the hung server"
    log = site.log.read_text()
    assert 1 == log.count("is down") == log.count("is available again")


# A Redis that rejects the client

PASSWORD, RIGHTS = "wrong user or password", "missing permissions of the user"
WAYS = {
    "no password": ("redis://{0}/0", PASSWORD),
    "wrong password": ("redis://:guess@{0}/0", PASSWORD),
    "unknown user": ("redis://bob:word@{0}/0", PASSWORD),
    "no right to a command": ("redis://app:word@{0}/0", RIGHTS),
    "no right inside a script": ("redis://script:word@{0}/0", RIGHTS),
    "no right to the keys": ("redis://keys:word@{0}/0", RIGHTS),
    "no such database": ("redis://:right@{0}/99", "wrong database number"),
    "no TLS": ("rediss://{0}/0", "wrong TLS settings or certificate"),
}


class NoTls(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.recv(1000)
        self.request.sendall(b"no TLS")


@pytest.fixture
def address(new_server):
    """Return a function that returns the address of the server for a URL. A rediss:// URL gets a
    server without TLS. A redis:// URL gets a Redis server that has a password, and three users
    without some permissions: "app", "script", and "keys"."""
    before, server = {*threading.enumerate()}, new_server(config={"requirepass": "right"})
    some = ["~*", "&*", "+ping"]
    users = {"app": some, "script": [*some, "+evalsha", "+eval", "+time"]}
    with redis.Redis.from_url(server.url) as client:
        for user, rights in {**users, "keys": ["~elsewhere:*", "+@all"]}.items():
            client.execute_command("ACL", "SETUSER", user, "on", ">word", *rights)
    with socketserver.TCPServer(("127.0.0.1", 0), NoTls) as plain:
        threading.Thread(target=plain.serve_forever, args=(0.01,), daemon=True).start()
        ports = {"redis": server.port, "rediss": plain.server_address[1]}
        yield lambda url: f"127.0.0.1:{ports[url.partition(':')[0]]}"
        # Python leaks the socket of a client whose connection a closing server resets.
        breaker.forget_breakers()
        started = {*threading.enumerate()} - before
        eventually(lambda: not any(one.is_alive() for one in started if "probe" in one.name))
        plain.shutdown()


@pytest.fixture
def errors(caplog):
    caplog.set_level(logging.DEBUG, "django_redis_sync")
    return lambda: [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]


@pytest.mark.promise(27, 28)
@pytest.mark.parametrize(("url", "cause"), WAYS.values(), ids=WAYS)
@BOTH
def test_cause_of_an_outage_is_logged_when_redis_rejects_the_client(
    address, project, errors, url, cause
):
    project.use_redis(url.format(address(url)))
    project.limit()
    assert [200] * 3 == [project.status() for _ in range(3)]
    (line,) = errors()
    assert f"'default' is misconfigured ({cause}): " in line
    assert "locks doctor" in line and "is down" not in line
    assert not {*["word", "guess", "right"]} & {*re.findall(r"\w+", line)}, "contains a password"
    with pytest.raises(Unavailable):
        Lock("one").acquire()
    out = StringIO()
    with pytest.raises(SystemExit):
        locks("doctor", stdout=out, no_color=True)
    shown = " ".join(out.getvalue().split())
    error = line.partition(f"({cause}): Redis: ")[2].partition(". This outage")[0].rstrip(".")
    assert "ACL" in shown if cause == RIGHTS else " ".join(error.split()) in shown, shown


def test_outage_is_logged_repeatedly_until_redis_accepts_the_client(
    project, server, errors, changes, monkeypatch, fast_probes
):
    monkeypatch.setattr(breaker, "REMINDER_INTERVAL", 0.3)
    project.limit()
    assert 200 == project.status()
    server.kill()
    assert 200 == project.status()
    # Set the password before the restart, because an existing connection stays authenticated.
    server.config["requirepass"] = "new"
    server.restart()
    eventually(lambda: len(errors()) >= 4)
    count = len(errors())
    monkeypatch.setattr(breaker, "REMINDER_INTERVAL", 300.0)
    eventually(lambda: len(errors()) > count)  # the next one is due in 300 s
    assert "is down" in errors()[0] and all("is misconfigured" in line for line in errors()[1:])
    with redis.Redis.from_url(server.url) as client:
        client.config_set("requirepass", "")
        eventually(lambda: project.status() == 200 and changes() == [True, False])
        # The next outage has the same cause, and comes before the reminder.
        client.config_set("requirepass", "new")
        client.client_kill_filter(_type="normal", skipme=True)
    eventually(lambda: project.status() == 200 and changes() == [True, False, True])
    eventually(lambda: "is misconfigured" in errors()[-1])


def test_local_waiter_is_admitted_if_the_holder_leaves_while_the_wait_begins(project):
    class Leaving(int):
        """A limit. Its comparison ends the first request if the second finds no free permit."""

        def __gt__(self, other):
            is_free = super().__gt__(other)
            if not is_free and leaving.ident is None:
                leaving.start()
                leaving.join(0.2)
            return is_free

    limit = Leaving(1)
    project.lose_redis()
    project.limit(limit=lambda request: limit, blocking_timeout=5)
    leaving = threading.Thread(target=project.visit().entered().end)
    assert 200 == project.visit().entered().end()
    assert leaving.ident is not None
