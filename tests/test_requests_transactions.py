"""Permits and transactions: given back after COMMIT or rollback, never before."""

import asyncio
import contextlib
import gc
import re
import threading
import time
import warnings
import weakref
from contextlib import AbstractContextManager
from typing import Any

import pytest
import redis
from django.contrib.auth.models import Group
from django.db import connection, connections, transaction
from django.http import HttpResponse
from django.test import Client, RequestFactory, TestCase

from django_redis_sync import (
    Lease,
    LeaseLost,
    Lock,
    RLock,
    Semaphore,
    acquire_all,
    semaphore_required,
    synchronized,
)
from django_redis_sync.locks import transactions
from django_redis_sync.locks.transactions import TransactionRace

from .behaviour.both import eventually
from .behaviour.watching import View, sent

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.promise(23)]
in_transactions = pytest.mark.django_db(transaction=True)


def lock() -> Lock:
    return Lock("stock", blocking=False)


def putting_off(**options: Any) -> Lock:
    """Released when the transaction ends."""
    return Lock("stock", release_on_commit=True, **options)


class Failed(Exception):
    pass


# Which transactions are open


def close_for_good(alias: str) -> None:
    """Of this thread or context: Django leaves SQLite's databases in memory open."""
    connections[alias].connection.close()


@in_transactions
def test_a_connection_that_a_thread_opens_later_is_known() -> None:
    found = []

    def work() -> None:
        leave(Lock("first"))  # the thread has no connection yet
        for _ in range(2):
            with transaction.atomic():
                leave(putting_off())
                found.append(lock().locked())
            connection.close()
        close_for_good("default")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [True, True] == found


@in_transactions
def test_a_transaction_of_one_thread_is_none_of_another() -> None:
    with transaction.atomic():
        thread = threading.Thread(target=lambda: leave(putting_off()))
        thread.start()
        thread.join()
        assert not lock().locked()


@in_transactions
def test_a_connection_that_is_dropped_is_not_kept() -> None:
    alive = []

    def work() -> None:
        leave(putting_off())
        connection.ensure_connection()
        alive.append(weakref.ref(connections["default"]))
        close_for_good("default")
        del connections["default"]
        gc.collect()
        alive.append(alive[0]() is not None)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert alive[1:] == [False]


@in_transactions
def test_on_an_event_loop_a_context_of_its_own_is_asked(monkeypatch) -> None:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")

    async def work() -> list[str]:
        try:
            with transaction.atomic():
                monkeypatch.setattr(
                    transactions._connected, "_known", []
                )  # as when another context opened it
                return transactions.transactions_of(None)
        finally:
            close_for_good("default")

    assert asyncio.run(work()) == ["default"]


@pytest.fixture
def committed(monkeypatch) -> list[bool]:
    """Whether the lock was held, at each COMMIT and rollback."""
    held = []
    for name in ("_commit", "_rollback"):
        method = getattr(connection, name)

        def told(method=method):
            method()
            held.append(lock().locked())

        monkeypatch.setattr(connection, name, told)
    return held


# lock.atomic()


@in_transactions
def test_atomic_gives_back_after_commit(committed) -> None:
    with lock().atomic() as lease:
        assert connection.in_atomic_block
        assert lease.held
        Group.objects.create(name="a")
    assert [True] == committed
    assert not lock().locked()
    assert 1 == Group.objects.count()


@in_transactions
def test_atomic_gives_back_after_rollback(committed) -> None:
    with pytest.raises(Failed), lock().atomic():
        Group.objects.create(name="a")
        raise Failed
    assert [True] == committed
    assert not lock().locked()
    assert 0 == Group.objects.count()


@in_transactions
def test_atomic_rolls_back_when_the_lease_was_lost(raw) -> None:
    with pytest.raises(LeaseLost), lock().atomic() as lease:
        Group.objects.create(name="a")
        raw.flushdb()
        with contextlib.suppress(LeaseLost):
            lease.renew()
    assert 0 == Group.objects.count()


@in_transactions
def test_atomic_inside_a_transaction_is_an_error_and_holds_nothing() -> None:
    with transaction.atomic(), pytest.raises(RuntimeError, match="durable"), lock().atomic():
        pass
    assert not lock().locked()


# Inside an open transaction


@in_transactions
def test_a_release_waits_for_the_rollback(committed) -> None:
    with pytest.raises(Failed), transaction.atomic():
        leave(putting_off())
        assert lock().locked()
        raise Failed
    assert [True] == committed
    assert not lock().locked()


@in_transactions
def test_a_lease_that_waits_for_a_commit_is_kept_alive(raw: redis.Redis) -> None:
    with transaction.atomic():
        leave(putting_off(timeout=3, renew=True))
        gc.collect()
        eventually(View(raw, "stock").renewals())
        assert lock().locked()
    assert not lock().locked()


class InATestCase(TestCase):
    """The transaction around a test is not the code's own; one inside of it is."""

    def test_a_release_outside_of_the_codes_own_transactions_is_made_at_once(self) -> None:
        for _ in range(2):
            with Lock("stock", release_on_commit=True, blocking_timeout=5):
                pass
        assert not lock().locked()

    def test_a_release_inside_of_one_comes_with_what_is_done_on_commit(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            with transaction.atomic(), Lock("stock", release_on_commit=True) as lease:
                pass
            assert lease.held
        assert lease.ended

    def test_a_release_inside_of_one_comes_with_the_end_of_the_test_else(self) -> None:
        with transaction.atomic(), putting_off() as lease:
            pass
        assert lease.held
        self.addClassCleanup(self.assert_ended, lease)

    @staticmethod
    def assert_ended(lease: Lease) -> None:
        assert lease.ended

    def test_atomic_may_be_used(self) -> None:
        with lock().atomic():
            assert connection.in_atomic_block
        assert not lock().locked()

    def test_no_race_is_told_of(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert 200 == answer().status_code


# The warning


def answer() -> HttpResponse:
    view = semaphore_required("one", limit=1)(lambda request: HttpResponse())
    return view(RequestFactory().get("/"))


@in_transactions
def test_a_permit_that_is_given_back_before_commit_is_warned_of_while_debugging(settings) -> None:
    settings.DEBUG = True
    with transaction.atomic(), pytest.warns(TransactionRace, match="ConcurrencyLimitMiddleware"):
        answer()
    answer()
    settings.DEBUG = False
    with transaction.atomic():
        answer()


def release(stock: Lock) -> None:
    stock.acquire()
    stock.release()


def leave(block: AbstractContextManager[Any]) -> None:
    with block:
        pass


#: Each takes "stock", and gives it back.
WAYS = {
    "release": lambda **options: release(Lock("stock", **options)),
    "RLock.release": lambda **options: release(RLock("stock", **options)),
    "block": lambda **options: leave(Lock("stock", **options)),
    "block of RLock": lambda **options: leave(RLock("stock", **options)),
    "acquire_all": lambda **options: leave(acquire_all([Lock("stock", **options)])),
    "synchronized": lambda **options: synchronized("stock", **options)(lambda: None)(),
}


@pytest.mark.parametrize("give_back", WAYS.values(), ids=WAYS)
@in_transactions
def test_in_each_way_a_lease_is_given_back_after_the_commit(committed, give_back) -> None:
    with transaction.atomic():
        give_back(release_on_commit=True)
        assert lock().locked()
    assert [True] == committed
    assert not lock().locked()


@pytest.mark.parametrize("give_back", WAYS.values(), ids=WAYS)
@in_transactions
def test_the_warning_is_at_the_line_of_the_project_that_gives_it_back(settings, give_back) -> None:
    settings.DEBUG = True
    with transaction.atomic(), pytest.warns(TransactionRace) as said:
        give_back()
    assert [__file__] == [one.filename for one in said]


@in_transactions
def test_a_lock_that_is_given_back_before_commit_is_told_of_once_in_the_log(
    caplog, monkeypatch
) -> None:
    monkeypatch.setattr(transactions, "_logged", set())
    with Lock("stock"):
        pass
    with transaction.atomic():
        for _ in range(3):
            with Lock("stock"):
                pass
        stock = synchronized("stock:{pk}")(lambda pk: None)
        for pk in range(50):
            stock(pk)
    told = [record.getMessage() for record in caplog.records]
    assert re.search(r"'stock' is released before the transaction on 'default'", told[0])
    assert "release_on_commit=True" in told[0] and "non_atomic_requests" in told[0]
    assert 1 == sum("'stock' is" in line for line in told)
    assert 20 == len(told)  # names made of arguments fill no log


@in_transactions
def test_atomic_is_refused_before_redis_is_asked(clean_redis) -> None:
    cure = pytest.raises(RuntimeError, match=r"non_atomic_requests.*release_on_commit=True")
    with Lock("stock"), transaction.atomic(), sent() as seen, cure:
        Lock("stock").atomic().__enter__()
    assert {} == seen.by_name


# Which database


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_a_lease_is_given_back_when_the_transactions_of_all_databases_are_over() -> None:
    with transaction.atomic(), Lock("stock", release_on_commit=True):
        with transaction.atomic("other"), Lock("both", release_on_commit=True):
            pass
        assert Lock("both").locked()  # that on "default" is open
    assert not Lock("both").locked() and not Lock("stock").locked()


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_a_lease_may_go_by_one_database() -> None:
    with transaction.atomic():
        with transaction.atomic("other"):
            with Lock("stock", release_on_commit="other"):
                pass
            assert Lock("stock").locked()
        assert not Lock("stock").locked()
        with Lock("stock", release_on_commit="other"):
            pass
        assert not Lock("stock").locked()


@in_transactions
def test_a_lease_is_given_back_with_the_rollback_of_its_savepoint() -> None:
    with transaction.atomic():
        with contextlib.suppress(Failed), transaction.atomic():
            with Lock("stock", release_on_commit=True):
                pass
            assert Lock("stock").locked()
            raise Failed
        gc.collect()
        assert not Lock("stock").locked()
        with transaction.atomic(), Lock("stock", release_on_commit=True):
            pass
        assert Lock("stock").locked()  # a savepoint that is kept is committed with the rest
    assert not Lock("stock").locked()


@in_transactions
def test_a_lost_lease_is_told_at_the_end_of_its_block_and_not_of_the_transaction() -> None:
    lost, stock = pytest.raises(LeaseLost), Lock("stock", release_on_commit=True)
    with transaction.atomic(), lost, stock as lease:
        lease._state.lose("meanwhile")


def test_what_is_no_database_is_refused() -> None:
    with pytest.raises(TypeError, match="a bool or a database's alias"):
        Lock("stock", release_on_commit=1)  # type: ignore[arg-type]


# ATOMIC_REQUESTS


@in_transactions
@pytest.mark.urls("tests.request_site.urls")
@pytest.mark.parametrize("path", ["/limited/", "/mixed/", "/onget/"])
def test_with_the_middleware_a_permit_outlives_the_transaction_of_the_request(
    path, settings, monkeypatch
) -> None:
    settings.DEBUG = True  # so that a race would be warned of
    settings.MIDDLEWARE = [
        *settings.MIDDLEWARE,
        "django_redis_sync.middleware.ConcurrencyLimitMiddleware",
    ]
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    held = []
    commit = connection._commit

    def told() -> None:
        commit()
        held.append(Lock("one").locked())

    monkeypatch.setattr(connection, "_commit", told)
    assert 200 == Client().get(path).status_code
    assert [True] == held
    assert not Lock("one").locked()
    with Lock("one"):
        assert 503 == Client().get(path).status_code
    assert [True] == held  # no transaction was begun for the one that was refused


@in_transactions
def test_a_transaction_that_would_wait_for_itself_is_told() -> None:
    ours = Lock("stock", release_on_commit=True)
    with transaction.atomic():
        with ours:
            pass
        with pytest.raises(RuntimeError, match="RLock"):
            ours.acquire()
        with pytest.raises(RuntimeError, match="until the open transaction ends"):
            Lock("stock", release_on_commit=True, blocking_timeout=5).acquire()
        with RLock("again", release_on_commit=True):
            pass
        with pytest.raises(RuntimeError, match="RLock"):
            Lock("again", release_on_commit=True, blocking_timeout=5).acquire()
        assert ours.acquire(blocking=False) is None  # who does not wait has an answer
        with Lock("another", release_on_commit=True):
            pass
        for _ in range(2):  # of several permits the next is free
            with Semaphore("seats", 2, release_on_commit=True):
                pass
    with ours:
        pass


@in_transactions
def test_a_lock_waits_for_another_threads_transaction() -> None:
    taken, ended = threading.Event(), []

    def other() -> None:
        with transaction.atomic():
            with Lock("stock", release_on_commit=True):
                pass
            taken.set()
            time.sleep(0.3)
            ended.append(True)
        connection.connection.close()  # Django's close() leaves databases in memory open

    thread = threading.Thread(target=other)
    thread.start()
    assert taken.wait(30)
    with transaction.atomic(), Lock("stock", release_on_commit=True):
        assert ended
    thread.join(30)
