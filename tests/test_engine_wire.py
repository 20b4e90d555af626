"""Errors, commands and replies, clients, and logged warnings. Without a server."""

from __future__ import annotations

import asyncio
import queue
import ssl
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from redis import exceptions as errors
from redis._parsers import BaseParser
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_redis_sync import conf
from django_redis_sync.engine import clients, drivers, loops, server, threads, wire
from django_redis_sync.engine.drivers import error_of
from django_redis_sync.engine.server import AsyncServer, async_server_of
from django_redis_sync.engine.wire import (
    MAX_LABEL,
    configuration_error,
    pack,
    pack_step,
    read_label,
    why,
    write_label,
)
from django_redis_sync.exceptions import ForeignValue, Unavailable
from django_redis_sync.protocol import plans
from django_redis_sync.protocol.keys import keys_of
from django_redis_sync.protocol.plans import Failure, Run
from tests.behaviour.both import eventually
from tests.support.caches import under_prefixes
from tests.test_engine_batching import on_loop

# Errors


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (errors.ConnectionError("refused"), ("unreachable", "unanswered")),
        (errors.TimeoutError("late"), ("unreachable", "unanswered")),
        (OSError("cut"), ("unreachable", "unanswered")),
        (errors.ConnectionError("max number of clients reached"), ("busy", "busy")),
        (errors.MaxConnectionsError("Too many connections"), ("busy", "busy")),
        (errors.BusyLoadingError("Redis is loading"), ("busy", "busy")),
        (errors.ReadOnlyError("You can't write against a replica"), ("busy", "busy")),
        (errors.TryAgainError("the slot is moving"), ("busy", "busy")),
        (errors.ClusterDownError("down"), ("busy", "busy")),
        (errors.MasterDownError("down"), ("busy", "busy")),
        (errors.ResponseError("BUSY Redis is busy running a script"), ("busy", "busy")),
        (errors.ResponseError("LOADING Redis is loading"), ("busy", "busy")),
        (errors.ResponseError("TRYAGAIN Multiple keys"), ("busy", "busy")),
        (errors.ResponseError("CLUSTERDOWN Hash slot not served"), ("busy", "busy")),
        (errors.ResponseError("MASTERDOWN Link is down"), ("busy", "busy")),
        (errors.ResponseError("READONLY You can't write"), ("busy", "busy")),
        (errors.ResponseError("UNBLOCKED force unblock"), ("busy", "busy")),
        (errors.ResponseError("WRONGTYPE Operation against a key"), ("final", "final")),
        (errors.ResponseError("OOM command not allowed"), ("final", "final")),
        (errors.AuthenticationError("WRONGPASS"), ("final", "final")),
        (errors.AuthorizationError("no right"), ("final", "final")),
        (errors.NoPermissionError("no right"), ("final", "final")),
        (errors.DataError("odd"), ("final", "final")),
    ],
    ids=lambda value: repr(value) if isinstance(value, Exception) else "",
)
def test_why_classifies_an_error_of_a_sent_and_of_an_unsent_command(
    error: Exception, meaning: tuple[str, str]
) -> None:
    assert meaning == (why(error, False), why(error, True))


def test_error_of_says_whether_the_step_may_have_been_executed() -> None:
    for meaning, maybe in (("unanswered", True), ("unreachable", False), ("busy", False)):
        found = error_of(Failure(errors.ConnectionError("x"), 0.0, meaning))  # type: ignore[arg-type]
        assert isinstance(found, Unavailable) and maybe == found.maybe_executed
        assert "Redis: x" == str(found)


def test_wrongtype_error_names_the_keys_that_may_have_a_foreign_value() -> None:
    wrong = Failure(errors.ResponseError("WRONGTYPE Operation against a key"), 0.0, "final")
    step = Run("release", ("sync:{a}:leases", "sync:{a}:never"), (), 1.0)
    for where, text in ((step, "of sync:{a}:leases, sync:{a}:queue, "), (None, "a key: ")):
        found = error_of(wrong, where)
        assert isinstance(found, ForeignValue) and text in str(found)


def test_noperm_error_names_the_remedy() -> None:
    denied = errors.ResponseError("NOPERM this user has no permissions")
    assert "least ACL" in str(error_of(Failure(denied, 0.0, "final")))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errors.AuthenticationError("odd"), "user or password"),
        (errors.ResponseError("NOAUTH Authentication required."), "user or password"),
        (errors.AuthorizationError("odd"), "permissions"),
        (errors.ResponseError("NOPERM this user has no permissions"), "permissions"),
        (ssl.SSLError("certificate verify failed"), "TLS"),
        (ssl.SSLEOFError("cut"), ""),
        (errors.ResponseError("DB index is out of range"), "database number"),
        (errors.ConnectionError("refused"), ""),
        (None, ""),
    ],
)
def test_configuration_error_names_the_wrong_setting(error: Any, text: str) -> None:
    found = configuration_error(error)
    assert text in found if text else found == ""


def test_configuration_error_is_found_among_chained_exceptions() -> None:
    outer = errors.ConnectionError("while connecting")
    outer.__cause__ = errors.ConnectionError("handshake")
    outer.__cause__.__context__ = errors.AuthenticationError("WRONGPASS")
    assert "password" in configuration_error(outer)


def test_text_replaces_invalid_bytes() -> None:
    texts = [wire.text(b"a\xff"), *wire.text([b"b\xff", [b"c\xff", 7, "d"]])]
    assert ["a\ufffd", "b\ufffd", ["c\ufffd", 7, "d"]] == texts


def test_command_passes_its_timeout_on(monkeypatch: pytest.MonkeyPatch) -> None:
    lent: list[float] = []

    class Lender:
        def check_out(self, within: float) -> Any:
            lent.append(within)
            raise errors.TimeoutError("late")

    mine = server.Server("default")
    monkeypatch.setattr(mine, "own", Lender)
    for ask in (
        lambda **of: mine.command("TIME", **of),
        lambda **of: mine.commands([["TIME"]], **of),
    ):
        for given in ({"timeout": 0.5}, {}):
            with pytest.raises(Failure):
                ask(**given)
    assert [0.5, wire.ATTEMPT] * 2 == lent


def test_pack_counts_words_in_bytes() -> None:
    step = plans.undoing(keys_of("p", "x"), "t")._replace(argv=("t", "ä", "undo", 1, 0, "-", 0))
    assert "$2\r\nä\r\n".encode() in pack_step(step)
    assert b"*1\r\n$2\r\n\xc3\xa4\r\n" == pack(("ä",))


# Replies


@pytest.fixture
def replies(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The replies to a pipeline."""
    made: list[Any] = []
    stub = SimpleNamespace(commands=lambda some: made, command=lambda *words: made[0])
    monkeypatch.setattr(drivers, "server_of", lambda alias: stub)
    return made


def test_hgetall_returns_a_dict_with_resp2_and_resp3(replies: list[Any]) -> None:
    asked = [("HGETALL", "a"), ("HGETALL", "b"), ("ZRANGE", "c", 0, 1)]
    replies += [[b"x", b"1", b"y", b"2"], {b"x": b"1"}, [b"x", b"1"]]
    assert [{"x": "1", "y": "2"}, {"x": "1"}, ["x", "1"]] == drivers.pipelined("default", asked)


def test_pipelined_raises_an_error_among_the_replies(replies: list[Any]) -> None:
    replies += [b"1", errors.ResponseError("OOM command not allowed")]
    with pytest.raises(Unavailable, match="OOM"):
        drivers.pipelined("default", [("GET", "a"), ("GET", "b")])


def test_whole_returns_the_default_for_invalid_and_too_large_numbers() -> None:
    texts = ["7", "-7", "", "x", "1.5", str(2**63 - 1), str(2**63), "9" * 400]
    assert [7, -7, 0, 0, 0, 2**63 - 1, 0, 0] == [wire.whole(text) for text in texts]
    assert 5 == wire.whole("x", 5)


def test_labels_are_cut_when_written_and_when_read() -> None:
    long = "x" * 1000
    assert MAX_LABEL == len(read_label(write_label(label=long))["label"])
    assert 1000 > len(write_label(label=long))
    assert MAX_LABEL == len(read_label(f'{{"host": "{long}"}}')["host"])
    assert {} == read_label("[" * 10**5)


# Settings


class StandInServer(AsyncServer):
    """An async server without a client. `closed` counts the calls of `aclose()`."""

    def __init__(self) -> None:
        self.closed = 0

    async def aclose(self) -> None:
        self.closed += 1


@on_loop
async def test_retired_server_is_closed_when_its_last_plan_has_ended(settings: Any) -> None:
    loop = asyncio.get_running_loop()
    mine = loops.resources_of(loop)
    used, idle = StandInServer(), StandInServer()
    used.plans = 2
    mine.by_alias.update(used=used, idle=idle)
    settings.CACHES = {**settings.CACHES}
    await asyncio.sleep(0.01)
    assert ({}, 0, 1) == (mine.by_alias, used.closed, idle.closed)
    used.left()
    await asyncio.sleep(0.01)
    assert 0 == used.closed
    used.left()
    await asyncio.sleep(0.01)
    assert 1 == used.closed


def test_retired_server_of_an_idle_loop_in_another_thread_is_closed(settings: Any) -> None:
    loop, idle = asyncio.new_event_loop(), StandInServer()

    async def begin() -> None:
        loops.resources_of(loop).by_alias["idle"] = idle

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(begin(), loop).result(20)
    time.sleep(0.05)  # until the loop is idle
    settings.CACHES = {**settings.CACHES}
    eventually(lambda: idle.closed)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(20)
    loop.close()


def attempts_with(retry: Any) -> int:
    """Return how often a call that always fails is made."""
    calls: list[int] = []

    async def fail(*_: Any) -> None:
        calls.append(1)
        raise errors.ConnectionError("refused")

    async def ignore(*_: Any) -> None: ...

    with pytest.raises(errors.ConnectionError):
        asyncio.run(retry.call_with_retry(fail, ignore))
    return len(calls)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_connections", 5),
        ("retry", Retry(NoBackoff(), 3)),
        ("retry_on_timeout", True),
        ("retry_on_error", [errors.TimeoutError]),
        ("timeout", 2.0),
        ("queue_class", queue.LifoQueue),
        ("parser_class", BaseParser),
    ],
)
def test_async_client_does_not_retry_and_ignores_options_of_the_pool(
    option: str, value: Any, settings: Any
) -> None:
    options = {"CONNECTION_POOL_KWARGS": {option: value}, "SOCKET_TIMEOUT": 3}
    cache = {**settings.CACHES["default"], "OPTIONS": options}
    settings.CACHES = {**settings.CACHES, "other": {**cache, "LOCATION": "redis://h:1/2"}}
    found = clients.async_options("other")
    assert 1 == attempts_with(found.pop("retry"))
    assert option not in found and 3 == found["socket_timeout"]
    pool = clients.async_client("other").connection_pool
    assert value != pool.connection_kwargs.get(option) and pool.make_connection()


@pytest.mark.parametrize("option", ["connection_class", "credential_provider"])
def test_async_client_rejects_options_for_sync_code_by_name(option: str, settings: Any) -> None:
    cache = {**settings.CACHES["default"], "OPTIONS": {"CONNECTION_POOL_KWARGS": {option: object}}}
    settings.CACHES = {**settings.CACHES, "other": {**cache, "LOCATION": "redis://h:1/2"}}
    with pytest.raises(ImproperlyConfigured, match=f"'other' holds {option}, .*ASYNC_CLIENT"):
        clients.async_options("other")


# This process


def test_uwsgi_without_threads_and_late_gevent_are_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(threads, "_warned", set())
    threads.warn_about_this_process()
    assert "" == caplog.text
    monkeypatch.setattr(threads, "uwsgi_runs_threads", lambda: False)
    monkeypatch.setattr(threads, "patched_late", lambda: True)
    for _ in range(2):
        threads.warn_about_this_process()
    assert 1 == caplog.text.count("--enable-threads")
    assert 1 == caplog.text.count("gevent patched")


@on_loop
async def test_channel_of_the_hub_has_the_prefix_of_its_cache(settings: Any) -> None:
    under_prefixes(settings, default="of-default", jobs="of-jobs")
    for alias in settings.CACHES:
        assert async_server_of(alias).hub.channel.startswith(f"of-{alias}:sync:wake:")


# Answers


class StandInCheckedOut:
    """Stand-in for CheckedOut. Sending takes one second, and reading one of `replies` two."""

    def __init__(self, now: list[float], *replies: Any) -> None:
        self.now, self.replies, self.sent = now, list(replies), list[float]()

    def __call__(self, lender: Any, within: float) -> StandInCheckedOut:
        self.lent = lender, within
        return self

    def __enter__(self) -> StandInCheckedOut:
        return self

    def __exit__(self, *_: Any) -> None: ...

    def send(self, packed: Any) -> None:
        self.sent.append(self.now[0])
        self.now[0] += 1

    send_several = send

    def read(self) -> Any:
        self.now[0] += 2
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply


@pytest.mark.parametrize("unknown", [False, True], ids=["known", "unknown script"])
def test_answer_is_timed_from_before_its_command_was_sent(
    unknown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    replies = [errors.NoScriptError("none"), [b"ok"]] if unknown else [[b"ok"]]
    line = StandInCheckedOut(now, *replies)
    monkeypatch.setattr(server, "CheckedOut", line)
    monkeypatch.setattr(server, "clock", lambda: now[0])
    answer = server.Server("default").run(plans.undoing(keys_of("p", "x"), "t"))
    assert (line.sent[-1], now[0], ["ok"]) == (answer.sent, answer.received, answer.reply)


def test_many_fails_only_the_step_that_got_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    line = StandInCheckedOut(now, [b"ok"], errors.ResponseError("WRONGTYPE"), [b"ok"])
    monkeypatch.setattr(server, "CheckedOut", line)
    monkeypatch.setattr(server, "clock", lambda: now[0])
    mine = server.Server("default")
    monkeypatch.setattr(mine, "own", lambda: "our own")
    times = (3.0, 1.0, 2.0)
    steps = [plans.undoing(keys_of("p", "x"), "t")._replace(timeout=time) for time in times]
    first, failed, last = mine.many(steps)
    assert isinstance(failed, Failure) and "final" == failed.why
    assert (100.0, 100.0) == (first.sent, last.sent)  # type: ignore[union-attr]
    assert ("our own", 1.0) == line.lent


def test_many_fails_only_the_step_whose_retry_with_its_source_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = Failure(errors.ConnectionError("cut"), 100.0, "unanswered")

    def run(step: Any) -> Any:
        raise gone

    mine = server.Server("default")
    monkeypatch.setattr(
        server, "CheckedOut", StandInCheckedOut([100.0], errors.NoScriptError(""), [b"ok"])
    )
    monkeypatch.setattr(mine, "own", lambda: None)
    monkeypatch.setattr(mine, "run", run)
    step = plans.undoing(keys_of("p", "x"), "t")
    failed, done = mine.many([step, step])
    assert failed is gone and ["ok"] == done.reply  # type: ignore[union-attr]


def test_clock_goes_on_while_the_machine_sleeps() -> None:
    clock: Any = wire.clock
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    assert boot is None or (time.clock_gettime, (boot,)) == (clock.func, clock.args)


def test_async_sentinel_client_has_the_database_and_the_sentinel_password(
    settings: Any,
) -> None:
    options = {
        "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
        "SENTINELS": [("127.0.0.1", 1)],
        "SENTINEL_KWARGS": {"password": "of sentinel"},
    }
    cache = {**settings.CACHES["default"], "LOCATION": "redis://mymaster/3", "OPTIONS": options}
    settings.CACHES = {**settings.CACHES, "watched": cache}
    pool = clients.async_client("watched").connection_pool
    assert ("mymaster", 3) == (pool.service_name, pool.connection_kwargs["db"])
    (sentinel,) = pool.sentinel_manager.sentinels
    assert "of sentinel" == sentinel.connection_pool.connection_kwargs["password"]


def test_aclose_closes_the_connections_to_sentinels() -> None:
    closed: list[str] = []

    def closing(what: str) -> SimpleNamespace:
        async def aclose() -> None:
            closed.append(what)

        return SimpleNamespace(aclose=aclose)

    client = closing("client")
    manager = SimpleNamespace(sentinels=[closing("first"), closing("second")])
    client.connection_pool = SimpleNamespace(sentinel_manager=manager)
    asyncio.run(AsyncServer("default", client).aclose())
    assert ["client", "first", "second"] == closed


def test_uwsgi_runs_threads_reads_the_options_of_uwsgi(monkeypatch: pytest.MonkeyPatch) -> None:
    assert threads.uwsgi_runs_threads() is None
    for options, runs in (
        ({b"master": b"1"}, False),
        ({b"enable-threads": b"1"}, True),
        ({"threads": "2"}, True),
    ):
        monkeypatch.setitem(sys.modules, "uwsgi", SimpleNamespace(opt=options))
        assert runs is threads.uwsgi_runs_threads()


def test_missing_entry_in_installed_apps_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for installed, times in ((True, 0), (False, 1)):
        monkeypatch.setattr(conf.apps, "is_installed", lambda name, installed=installed: installed)
        conf.current.cache_clear()
        conf.current()
        conf.current()
        assert times == caplog.text.count("is not in INSTALLED_APPS")
    conf.current.cache_clear()
