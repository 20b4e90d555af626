"""Renewals in the background: batches, errors, memory, and what is logged."""

from __future__ import annotations

import gc
import sys
import time
from typing import Any

import pytest
import redis

from django_redis_sync import Lease, Lock
from django_redis_sync.engine import queues
from tests.behaviour.both import eventually
from tests.support.relays import CUT, SILENCE, Relay


def commands_and_reads(client: redis.Redis) -> tuple[int, int]:
    stats = client.info("commandstats")
    return stats["cmdstat_evalsha"]["calls"], client.info("stats")["total_reads_processed"]


def test_a_thousand_leases_are_renewed_in_batches_before_they_expire(
    new_server: Any, settings: Any
) -> None:
    server = new_server()
    cache = {**settings.CACHES["default"], "LOCATION": server.url}
    settings.CACHES = {**settings.CACHES, "private": cache}
    with redis.Redis.from_url(server.url) as client:
        options = {"using": "private", "timeout": 12, "renew": True}
        leases = [Lock(f"x{n}", **options).acquire() for n in range(1000)]
        began, (commands, reads) = time.monotonic(), commands_and_reads(client)
        while True:
            time.sleep(0.5)
            now, reads = commands_and_reads(client), reads + 2  # the server has read this, too
            if (sent := now[0] - commands) >= 2 * 1000:
                break
        took = time.monotonic() - began
        # A lease is renewed every 4 s. In a batch with other leases, it is renewed up to 0.5 s
        # earlier.
        assert sent <= 1000 * (took / 3.5 + 1), "renewed too often"
        # The server reads each renewal alone if they are sent one by one. It reads up to 16 kB of a
        # batch, or less if a busy machine runs it before the whole batch is there.
        assert now[1] - reads <= sent / 4, "renewals were not sent in batches"
        assert all(lease and lease.held for lease in leases)
        for lease in leases:
            lease.release()


@pytest.mark.parametrize(
    ("reply", "times", "kept"),
    [("-ERR odd", 10**9, False), (["lost"], 10**9, False), ("-NOSCRIPT none", 1, True)],
    ids=["error", "lost", "unknown script"],
)
def test_reply_to_one_renewal_of_a_batch_affects_only_its_own_lease(
    relay: Relay, reply: Any, times: int, kept: bool
) -> None:
    lost, replies = list[Lease](), [reply] * min(times, 100)

    def answer(command: Any, forward: Any) -> Any:
        return replies.pop() if replies and "{b}" in command[3] else forward()

    relay.answer("renew", answer)
    options = {"using": relay.alias, "timeout": 3, "renew": True, "on_lost": lost.append}
    leases = [Lock(one, **options).acquire() for one in "abc"]
    for one in "ac":
        eventually(relay.view(one).renewals())
    if kept:
        eventually(relay.view("b").renewals())
    else:
        eventually(lambda: lost == [leases[1]])
    assert [True, kept, True] == [lease.held for lease in leases]
    for lease in leases:
        if lease.held:
            lease.release()


@pytest.mark.parametrize("reply", ["-ERR odd", SILENCE], ids=["error", "silence"])
def test_one_message_is_logged_when_renewals_fail_and_one_when_they_succeed_again(
    relay: Relay, reply: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def logged() -> list[str]:
        return [line for line in caplog.messages if "renewed" in line and relay.alias in line]

    lease = Lock("x", using=relay.alias, timeout=12, renew=True).acquire()
    assert lease
    for nth in ("first", "second"):
        caplog.clear()
        most = len(relay.verbs("renew")) + 2
        relay.answer("renew", reply)
        eventually(lambda most=most: len(relay.verbs("renew")) >= most)
        eventually(logged)
        (failing,) = logged()
        assert failing.startswith(f"1 leases of {relay.alias!r} could not be renewed: ")
        relay.calm()
        eventually(lambda: len(logged()) > 1)
        lines = [failing, f"the leases of {relay.alias!r} are renewed again"]
        assert lines == logged(), f"of the {nth} outage"
    assert lease.held
    lease.release()


def test_release_that_fails_is_retried_once_per_interval(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "RETRY", 0.2)
    lease = Lock("x", using=relay.alias).acquire()
    relay.answer("release", CUT)
    began = time.monotonic()
    assert lease
    lease.release_later()
    eventually(lambda: len(relay.verbs("release")) >= 5)
    tries = len(relay.verbs("release"))
    assert tries <= 1 + (time.monotonic() - began) / 0.2, "the thread doesn't pause between tries"
    relay.calm()
    eventually(lambda: relay.view().holding == 0)


def test_leases_of_a_removed_cache_are_logged_once_and_not_renewed(
    relay: Relay, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    lease = Lock("x", using=relay.alias, timeout=1.5, renew=True).acquire()
    settings.CACHES = {"default": settings.CACHES["default"]}
    message = f"the leases of {relay.alias!r} are no longer renewed"
    eventually(lambda: message in caplog.text)
    time.sleep(1.2)
    assert lease is not None
    assert 1 == caplog.text.count(message)


def test_memory_use_does_not_grow_with_the_number_of_released_leases(relay: Relay) -> None:
    def cycles(count: int) -> None:
        for n in range(count):
            Lock(f"x{n % 50}", using=relay.alias, timeout=60, renew=True).acquire().release()
        relay.received.clear()

    cycles(500)
    gc.collect()
    before = sys.getallocatedblocks()
    cycles(2500)
    # The statistics of the last acquires are in memory for up to 2 s, until they are written.
    eventually(lambda: gc.collect() >= 0 and sys.getallocatedblocks() < before + 2000, 15)
