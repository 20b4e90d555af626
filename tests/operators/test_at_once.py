"""An operator's command sees names that were used a moment ago, by its own process or by others."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import redis
from django.conf import settings as site

from django_redis_sync import Lock, Semaphore
from tests.behaviour.both import eventually
from tests.operators.test_quorums import QUORUM, qs, servers  # noqa: F401 - fixtures
from tests.support.operators import act, failed, locks
from tests.support.renewers import fresh_renewer  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("raw", "fresh_renewer")


@pytest.mark.parametrize("round", range(3))
def test_clear_by_pattern_finds_a_name_that_was_granted_a_moment_ago(round: int) -> None:
    with Lock("other"):
        leases = [Lock(f"x{n}", timeout=600).acquire() for n in range(5)]
        assert "Cleared 5." in locks("clear", "x*", "--pattern", "--no-input")
    assert not any(lease.owned() for lease in leases)


def test_clear_by_pattern_finds_a_name_that_another_process_registers_a_moment_later(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Lock("late", timeout=600).acquire()
    locks("status")  # this process has registered the name
    raw.delete(f"{site.PREFIX}:names")
    monkeypatch.setattr(
        time, "sleep", lambda seconds: raw.zadd(f"{site.PREFIX}:names", {"late": 1})
    )
    assert "Cleared 1." in locks("clear", "la*", "--pattern", "--no-input")
    assert not lease.owned()


def test_list_shows_a_name_that_was_granted_a_moment_ago() -> None:
    with Lock("now"):
        assert "now" in locks("status")
    assert "No known name matches the pattern." in locks("clear", "none*", "--pattern")


@pytest.mark.usefixtures("qs")
def test_status_and_clear_find_a_lock_on_a_quorum_that_was_granted_a_moment_ago() -> None:
    lease = Lock("ledger", using=QUORUM, raise_on_release_error=False).acquire()
    assert "On a quorum of 3 servers:" in locks("status", "ledger")
    lease.release()
    lease = Lock("books", using=QUORUM, raise_on_release_error=False).acquire()
    assert "Cleared 1." in locks("clear", "books", "--no-input")
    assert not lease.owned()


def test_pause_says_for_how_long_it_is() -> None:
    assert "(for 10 s)." in act("pause", "p", "--for", "10")
    assert "(for 10 min)." in act("pause", "p", "--for", "10m")
    assert "(for 1 h 30 min)." in act("pause", "p", "--for", "1.5h")


@pytest.mark.parametrize(("text", "seconds"), [("10m", 600), ("2h", 7200), ("0.5", 0.5), ("1s", 1)])
def test_run_takes_times_with_units(text: str, seconds: float, monkeypatch: Any) -> None:
    given: list[Any] = []
    monkeypatch.setattr(
        "django_redis_sync.management.runner.run",
        lambda command, stderr, options: given.append(options) or 0,
    )
    monkeypatch.setattr("sys.exit", lambda code: None)
    from django.core.management import execute_from_command_line

    words = ["run", "x", "--wait", text, "--min-hold", text, "--", "true"]
    execute_from_command_line(["manage.py", "locks", *words])
    assert (seconds, seconds) == (given[0].wait, given[0].min_hold)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("echo hi", "-- echo hi"),
        ("ls -l --wait 3", "-- ls -l --wait 3"),
        ("--limit 2 sleep 5", "--limit 2 -- sleep 5"),
    ],
)
def test_run_without_dashes_says_what_to_write(words: str, told: str, capsys: Any) -> None:
    from django.core.management import execute_from_command_line

    with pytest.raises(SystemExit) as caught:
        execute_from_command_line(["manage.py", "locks", "run", "x y", *words.split()])
    assert 2 == caught.value.code
    error = capsys.readouterr().err
    assert f"Give the command after --, such as: locks run 'x y' {told}\n" in error
    assert (2, True) == ((found := failed("run", "x"))[0], "COMMAND" in found[1])


# The task of a holder


def test_holder_of_async_code_shows_the_name_of_its_task() -> None:
    import asyncio

    async def work() -> None:
        async with Semaphore("books", 3, timeout=600):
            text = await asyncio.to_thread(locks, "status", "books")
        assert "import-7" in text and "MainThread" not in text

    async def main() -> None:
        await asyncio.create_task(work(), name="import-7")

    asyncio.run(main())


def test_holder_of_a_thread_shows_the_name_of_the_thread() -> None:
    done = threading.Event()

    def work() -> None:
        with Semaphore("books", 3, timeout=600):
            done.wait()

    thread = threading.Thread(target=work, name='ware"house')
    thread.start()
    try:
        eventually(lambda: Semaphore("books", 3).status().in_use)
        assert 'ware"house' in locks("status", "books")
    finally:
        done.set()
        thread.join()
