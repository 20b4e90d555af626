"""Permits and transactions: a permit is released after COMMIT or rollback, never before."""

import asyncio
import contextlib
import gc
import threading
import time
import warnings
import weakref
from collections.abc import Callable
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


def lock_until_commit(**options: Any) -> Lock:
    """Return a lock that is released when the transaction ends."""
    return Lock("stock", release_on_commit=True, **options)


def in_thread(function: Callable[[], Any]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def use(block: AbstractContextManager[Any]) -> None:
    """Enter and leave the block."""
    with block:
        pass


class Failed(Exception):
    pass


# Which transactions are open


def close_connection() -> None:
    """Close the SQLite connection of this thread or context.

    Django's close() leaves a database in memory open.
    """
    connections["default"].connection.close()


@in_transactions
def test_release_waits_for_a_transaction_on_a_connection_opened_later() -> None:
    found = []

    def work() -> None:
        use(Lock("first"))  # the thread has no connection yet
        for _ in range(2):
            with transaction.atomic():
                use(lock_until_commit())
                found.append(lock().locked())
            connection.close()
        close_connection()

    in_thread(work)
    assert [True, True] == found


@in_transactions
def test_release_does_not_wait_for_the_transaction_of_another_thread() -> None:
    with transaction.atomic():
        in_thread(lambda: use(lock_until_commit()))
        assert not lock().locked()


@in_transactions
def test_dropped_connection_is_not_kept_alive() -> None:
    found = []

    def work() -> None:
        use(lock_until_commit())
        connection.ensure_connection()
        reference = weakref.ref(connections["default"])
        close_connection()
        del connections["default"]
        gc.collect()
        found.append(reference())

    in_thread(work)
    assert [None] == found


@in_transactions
def test_transactions_of_another_context_are_found_on_an_event_loop(monkeypatch) -> None:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")

    async def work() -> list[str]:
        try:
            with transaction.atomic():
                # The library has not seen a connection that another context opened.
                monkeypatch.setattr(transactions._connected, "_known", [])
                return transactions.transactions_of(None)
        finally:
            close_connection()

    assert asyncio.run(work()) == ["default"]


@pytest.fixture
def held_at_commit(monkeypatch) -> list[bool]:
    """For each COMMIT and rollback, True if the lock "stock" was held then."""
    held = []
    for name in ("_commit", "_rollback"):
        method = getattr(connection, name)

        def record(method=method):
            method()
            held.append(lock().locked())

        monkeypatch.setattr(connection, name, record)
    return held


def lose(lease: Lease, raw: redis.Redis) -> None:
    raw.flushdb()
    with contextlib.suppress(LeaseLost):
        lease.renew()


# lock.atomic()


@in_transactions
def test_atomic_releases_after_commit(held_at_commit) -> None:
    with lock().atomic() as lease:
        assert connection.in_atomic_block
        assert lease.held
        Group.objects.create(name="a")
    assert [True] == held_at_commit
    assert not lock().locked()
    assert 1 == Group.objects.count()


@in_transactions
def test_atomic_releases_after_rollback(held_at_commit) -> None:
    with pytest.raises(Failed), lock().atomic():
        Group.objects.create(name="a")
        raise Failed
    assert [True] == held_at_commit
    assert not lock().locked()
    assert 0 == Group.objects.count()


@in_transactions
def test_atomic_rolls_back_when_the_lease_is_lost(raw) -> None:
    with pytest.raises(LeaseLost), lock().atomic() as lease:
        Group.objects.create(name="a")
        lose(lease, raw)
    assert 0 == Group.objects.count()


@in_transactions
def test_atomic_inside_a_transaction_raises_before_redis_is_asked() -> None:
    message = r"durable.*non_atomic_requests.*release_on_commit=True"
    raises = pytest.raises(RuntimeError, match=message)
    with transaction.atomic(), sent() as commands, raises, lock().atomic():
        pass
    assert {} == commands.by_name
    assert not lock().locked()


# Inside an open transaction


@in_transactions
def test_release_waits_for_the_rollback(held_at_commit) -> None:
    with pytest.raises(Failed), transaction.atomic():
        use(lock_until_commit())
        assert lock().locked()
        raise Failed
    assert [True] == held_at_commit
    assert not lock().locked()


@in_transactions
def test_lease_is_renewed_until_the_commit(raw: redis.Redis) -> None:
    with transaction.atomic():
        use(lock_until_commit(timeout=3, renew=True))
        gc.collect()
        eventually(View(raw, "stock").renewals())
        assert lock().locked()
    assert not lock().locked()


class InATestCase(TestCase):
    """The transaction that TestCase begins around each test does not delay a release."""

    def test_release_outside_of_a_transaction_of_the_code_is_immediate(self) -> None:
        for _ in range(2):
            use(lock_until_commit(blocking_timeout=5))
        assert not lock().locked()

    def test_release_inside_a_transaction_runs_with_the_on_commit_callbacks(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            with transaction.atomic(), lock_until_commit() as lease:
                pass
            assert lease.held
        assert lease.ended

    def test_release_inside_a_transaction_waits_for_the_end_of_the_test(self) -> None:
        with transaction.atomic(), lock_until_commit() as lease:
            pass
        assert lease.held
        self.addClassCleanup(self.assert_ended, lease)

    @staticmethod
    def assert_ended(lease: Lease) -> None:
        assert lease.ended

    def test_atomic_works_in_a_test_case(self) -> None:
        with lock().atomic():
            assert connection.in_atomic_block
        assert not lock().locked()

    def test_release_in_a_test_case_does_not_warn(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert 200 == respond().status_code


# The warning


def respond() -> HttpResponse:
    """Return the response of a limited view."""
    view = semaphore_required("one", limit=1)(lambda request: HttpResponse())
    return view(RequestFactory().get("/"))


@in_transactions
def test_release_before_commit_warns_only_with_debug(settings) -> None:
    settings.DEBUG = True
    with transaction.atomic(), pytest.warns(TransactionRace, match="ConcurrencyLimitMiddleware"):
        respond()
    respond()
    settings.DEBUG = False
    with transaction.atomic():
        respond()


def acquire_and_release(stock: Lock) -> None:
    stock.acquire()
    stock.release()


#: Functions that acquire and release "stock".
WAYS = {
    "release": lambda **options: acquire_and_release(Lock("stock", **options)),
    "RLock.release": lambda **options: acquire_and_release(RLock("stock", **options)),
    "block": lambda **options: use(Lock("stock", **options)),
    "block of RLock": lambda **options: use(RLock("stock", **options)),
    "acquire_all": lambda **options: use(acquire_all([Lock("stock", **options)])),
    "synchronized": lambda **options: synchronized("stock", **options)(lambda: None)(),
}


@pytest.mark.parametrize("use_stock", WAYS.values(), ids=WAYS)
@in_transactions
def test_release_on_commit_releases_after_the_commit(held_at_commit, use_stock) -> None:
    with transaction.atomic():
        use_stock(release_on_commit=True)
        assert lock().locked()
    assert [True] == held_at_commit
    assert not lock().locked()


@pytest.mark.parametrize("use_stock", WAYS.values(), ids=WAYS)
@in_transactions
def test_warning_names_the_line_of_the_project_that_releases(settings, use_stock) -> None:
    settings.DEBUG = True
    with transaction.atomic(), pytest.warns(TransactionRace) as warned:
        use_stock()
    assert [__file__] == [one.filename for one in warned]


@in_transactions
def test_release_before_commit_is_logged_once_for_each_name_without_debug(
    caplog, monkeypatch
) -> None:
    monkeypatch.setattr(transactions, "_logged", set())
    use(Lock("stock"))
    with transaction.atomic():
        for _ in range(3):
            use(Lock("stock"))
        stock = synchronized("stock:{pk}")(lambda pk: None)
        for pk in range(50):
            stock(pk)
    lines = caplog.messages
    assert "'stock' is released before the transaction on 'default'" in lines[0]
    assert "release_on_commit=True" in lines[0] and "non_atomic_requests" in lines[0]
    assert 1 == sum("'stock' is" in line for line in lines)
    assert 20 == len(lines)  # names that contain arguments do not fill the log


# Which database


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_release_on_commit_waits_for_the_transactions_of_all_databases() -> None:
    with transaction.atomic(), lock_until_commit():
        with transaction.atomic("other"), Lock("both", release_on_commit=True):
            pass
        assert Lock("both").locked()  # the transaction on "default" is open
    assert not Lock("both").locked() and not Lock("stock").locked()


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_release_on_commit_with_an_alias_waits_only_for_that_database() -> None:
    with transaction.atomic():
        with transaction.atomic("other"):
            use(Lock("stock", release_on_commit="other"))
            assert Lock("stock").locked()
        assert not Lock("stock").locked()
        use(Lock("stock", release_on_commit="other"))
        assert not Lock("stock").locked()


@in_transactions
def test_lease_is_released_with_the_rollback_of_its_savepoint() -> None:
    with transaction.atomic():
        with contextlib.suppress(Failed), transaction.atomic():
            use(lock_until_commit())
            assert Lock("stock").locked()
            raise Failed
        gc.collect()
        assert not Lock("stock").locked()
        with transaction.atomic(), lock_until_commit():
            pass
        assert Lock("stock").locked()  # the outer transaction commits this savepoint later
    assert not Lock("stock").locked()


@in_transactions
def test_lost_lease_raises_at_the_end_of_its_block_inside_a_transaction(raw) -> None:
    with transaction.atomic(), pytest.raises(LeaseLost), lock_until_commit() as lease:
        lose(lease, raw)


def test_release_on_commit_raises_type_error_for_anything_but_a_bool_or_alias() -> None:
    with pytest.raises(TypeError, match="a bool or a database's alias"):
        Lock("stock", release_on_commit=1)  # type: ignore[arg-type]


# ATOMIC_REQUESTS


@in_transactions
@pytest.mark.urls("tests.request_site.urls")
@pytest.mark.parametrize("path", ["/limited/", "/mixed/", "/onget/"])
def test_middleware_releases_after_the_transaction_of_the_request(
    path, settings, monkeypatch
) -> None:
    settings.DEBUG = True  # so that a race would raise a warning
    settings.MIDDLEWARE = [
        *settings.MIDDLEWARE,
        "django_redis_sync.middleware.ConcurrencyLimitMiddleware",
    ]
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    held = []
    commit = connection._commit

    def record() -> None:
        commit()
        held.append(Lock("one").locked())

    monkeypatch.setattr(connection, "_commit", record)
    assert 200 == Client().get(path).status_code
    assert [True] == held
    assert not Lock("one").locked()
    with Lock("one"):
        assert 503 == Client().get(path).status_code
    assert [True] == held  # no transaction began for the rejected request


@in_transactions
def test_acquire_raises_when_the_transaction_would_wait_for_itself() -> None:
    stock = lock_until_commit()
    with transaction.atomic():
        use(stock)
        with pytest.raises(RuntimeError, match="RLock"):
            stock.acquire()
        with pytest.raises(RuntimeError, match="until the open transaction ends"):
            lock_until_commit(blocking_timeout=5).acquire()
        use(RLock("again", release_on_commit=True))
        with pytest.raises(RuntimeError, match="RLock"):
            Lock("again", release_on_commit=True, blocking_timeout=5).acquire()
        assert stock.acquire(blocking=False) is None  # an acquire that does not wait returns
        use(Lock("another", release_on_commit=True))
        for _ in range(2):  # a second permit is free
            use(Semaphore("seats", 2, release_on_commit=True))
    use(stock)


@in_transactions
def test_lock_waits_for_the_transaction_of_another_thread() -> None:
    taken, ended = threading.Event(), []

    def other() -> None:
        with transaction.atomic():
            use(lock_until_commit())
            taken.set()
            time.sleep(0.3)
            ended.append(True)
        close_connection()

    thread = threading.Thread(target=other)
    thread.start()
    assert taken.wait(30)
    with transaction.atomic(), lock_until_commit():
        assert ended
    thread.join(30)
