"""A lock with `release_on_commit` is held until the COMMIT, also in async code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, transaction
from django.db.transaction import TransactionManagementError

from django_redis_sync import (
    Lock,
    NotAcquired,
    ReadWriteLock,
    RLock,
    Semaphore,
    acquire_all,
    synchronized,
)
from django_redis_sync.exceptions import TransactionRace, UpgradeRefused
from tests.behaviour.both import MAX_WAIT, Async, until

pytestmark = [
    pytest.mark.usefixtures("clean_redis"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.promise(23),
]

OPTIONS: Any = {"release_on_commit": True}


async def _block(lock: Any) -> None:
    async with lock:
        pass


async def _acquire_and_release(lock: Any) -> None:
    await lock.aacquire()
    await lock.arelease()


@synchronized("seat", **OPTIONS)
async def _limited() -> None:
    pass


#: The async forms of a lock. Each takes and releases the permit of the name "seat".
FORMS: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
    "block": lambda: _block(Lock("seat", **OPTIONS)),
    "methods": lambda: _acquire_and_release(Lock("seat", **OPTIONS)),
    "RLock": lambda: _block(RLock("seat", **OPTIONS)),
    "RLock's methods": lambda: _acquire_and_release(RLock("seat", **OPTIONS)),
    "writer": lambda: _block(ReadWriteLock("seat", **OPTIONS).write),
    "reader": lambda: _block(ReadWriteLock("seat", **OPTIONS).read),
    "acquire_all": lambda: _block(acquire_all([Lock("seat", **OPTIONS)])),
    "acquire_all's methods": lambda: _acquire_and_release(acquire_all([Lock("seat", **OPTIONS)])),
    "synchronized": lambda: _limited(),
    "semaphore": lambda: _block(Semaphore("seat", 1, **OPTIONS)),
    "alias": lambda: _block(Lock("seat", release_on_commit="default")),
}


@pytest.fixture(params=FORMS)
def form(request: Any) -> Callable[[], Coroutine[Any, Any, None]]:
    return FORMS[request.param]


async def _here(form: Callable[[], Coroutine[Any, Any, None]]) -> None:
    await form()


async def _in_a_task(form: Callable[[], Coroutine[Any, Any, None]]) -> None:
    await asyncio.create_task(form())


def test_async_lock_is_held_until_the_transaction_of_the_calling_sync_code_ends(form, view) -> None:
    for run in (_here, _in_a_task):
        with transaction.atomic():
            async_to_sync(run)(form)
            assert view("seat").holding == 1, "it was released before the COMMIT"
        assert view("seat").empty
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        async_to_sync(_here)(form)
        assert view("seat").holding == 1
        raise ZeroDivisionError
    assert view("seat").empty, "it is held after the rollback"
    async_to_sync(_here)(form)
    assert view("seat").empty, "it is held without a transaction"


def test_async_lock_of_an_event_loop_waits_for_the_transaction_of_its_caller(form, view) -> None:
    @sync_to_async
    def work() -> int:
        with transaction.atomic():
            async_to_sync(_here)(form)
            return int(view("seat").holding)

    assert asyncio.run(work()) == 1
    assert view("seat").empty


def test_second_async_wait_in_the_same_transaction_raises_an_error(view) -> None:
    with transaction.atomic():
        async_to_sync(_here)(FORMS["block"])
        for again in (FORMS["block"], FORMS["RLock"]):
            with pytest.raises(RuntimeError, match="held until the open transaction ends"):
                async_to_sync(_here)(again)
        with pytest.raises(NotAcquired):
            async_to_sync(_block)(Lock("seat", blocking=False, **OPTIONS))
    assert view("seat").empty


def test_async_lock_is_released_if_its_task_is_cancelled_at_the_release(view) -> None:
    async def service() -> None:
        inside = asyncio.Event()

        async def hold() -> None:
            async with Lock("seat", **OPTIONS):
                inside.set()
                await asyncio.sleep(0)

        task = asyncio.create_task(hold())
        await inside.wait()
        task.cancel()
        await asyncio.wait((task,))

    with transaction.atomic():
        async_to_sync(service)()
    async_to_sync(until)(Async(), lambda: view("seat").empty)


def test_failed_acquire_all_releases_in_the_transaction(view) -> None:
    both = acquire_all([Lock("a", **OPTIONS), Lock("seat", **OPTIONS)], blocking=False)
    with Lock("seat"), transaction.atomic():
        assert async_to_sync(both.aacquire)() is None
        assert view("a").empty


# The warning of a plain lock


@pytest.fixture
def debug(settings: Any) -> Iterator[None]:
    settings.DEBUG = True
    yield


@pytest.mark.parametrize("form", [_block, _acquire_and_release])
def test_plain_async_lock_warns_in_the_transaction_of_the_calling_code(form, debug, view) -> None:
    with (
        transaction.atomic(),
        pytest.warns(TransactionRace, match="'seat' is released before the transaction"),
    ):
        async_to_sync(form)(Lock("seat"))
    assert view("seat").empty
    async_to_sync(form)(Lock("seat"))  # without a transaction: no warning, which would be an error


# Locks that can't wait for the COMMIT


@pytest.fixture
def manual() -> Iterator[None]:
    transaction.set_autocommit(False)
    yield
    transaction.rollback()
    transaction.set_autocommit(True)


@pytest.mark.parametrize("using", [True, "default"])
def test_release_on_commit_is_refused_without_autocommit(using, manual, view) -> None:
    lock = Lock("seat", release_on_commit=using)
    for acquire in (
        lock.acquire,
        lock.__enter__,
        async_to_sync(lock.aacquire),
        lambda: async_to_sync(_block)(lock),
    ):
        with pytest.raises(TransactionManagementError, match="autocommit of the database 'defau"):
            acquire()
    with transaction.atomic(), pytest.raises(TransactionManagementError):
        lock.acquire()
    assert view("seat").empty
    with Lock("seat", release_on_commit="other"):
        pass


def test_autocommit_that_is_turned_off_in_a_block_raises_at_its_end(view) -> None:
    try:
        with pytest.raises(TransactionManagementError), Lock("seat", **OPTIONS):
            transaction.set_autocommit(False)
        async_to_sync(until)(Async(), lambda: view("seat").empty)
        transaction.set_autocommit(True)
        with pytest.raises(ZeroDivisionError), Lock("seat", **OPTIONS):
            transaction.set_autocommit(False)
            raise ZeroDivisionError
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


def test_misspelled_database_alias_is_refused(view) -> None:
    lock = Lock("seat", release_on_commit="defualt")
    for acquire in (lock.acquire, async_to_sync(lock.aacquire), synchronized_with_alias):
        with pytest.raises(ImproperlyConfigured, match="'defualt' is not in DATABASES"):
            acquire()
    with (
        pytest.raises(ImproperlyConfigured, match="'defualt' is not in DATABASES"),
        Lock("seat").atomic("defualt"),
    ):
        pass
    with pytest.raises(TypeError), Lock("seat").atomic(5):  # type: ignore[arg-type]
        pass
    assert view("seat").empty


@synchronized("seat", release_on_commit="defualt")
def synchronized_with_alias() -> None:
    pass


# Callbacks of other apps


def test_lock_is_released_if_another_callback_raises_and_its_exception_is_kept(view) -> None:
    def failing() -> None:
        raise ZeroDivisionError

    kept = []
    for _ in range(2):
        try:
            with transaction.atomic():
                transaction.on_commit(failing)
                with Lock("seat", **OPTIONS), Lock("other", **OPTIONS):
                    pass
                assert view("seat").holding == 1
        except ZeroDivisionError as error:
            kept.append(error)
        assert view("seat").empty and view("other").empty
        assert not connection.run_on_commit
    assert len(kept) == 2


def test_callbacks_after_the_lock_run_once(view) -> None:
    calls: list[bool] = []
    with transaction.atomic():
        with Lock("seat", **OPTIONS):
            transaction.on_commit(lambda: calls.append(view("seat").empty))
        transaction.on_commit(lambda: calls.append(view("seat").empty))
    assert [False, True] == calls


@pytest.mark.parametrize("options", [{}, OPTIONS], ids=["plain", "release_on_commit"])
@pytest.mark.parametrize("kind", [Lock, RLock])
def test_callback_may_wait_for_the_lock_of_its_transaction(kind, options, view, caplog) -> None:
    """The callback was registered in the block, so it runs before the release."""
    taken = []

    def callback() -> None:
        with kind("seat", blocking_timeout=MAX_WAIT, **options):
            taken.append(view("seat").holding)

    with transaction.atomic():
        with kind("seat", **OPTIONS):
            transaction.on_commit(callback)
        assert [] == taken
        with (
            pytest.raises((NotAcquired, RuntimeError)),
            Lock("seat", blocking_timeout=0.05, **options),
        ):
            pass  # the twin: before the COMMIT, the lock is held
    assert [1] == taken and view("seat").empty
    assert not [one for one in caplog.records if "failed" in one.getMessage()]


@pytest.mark.parametrize("later", ["read", "write"])
@pytest.mark.parametrize("first", ["read", "write"])
def test_callback_may_wait_for_each_side_of_the_lock_of_its_transaction(first, later, view) -> None:
    taken, lock = [], ReadWriteLock("seat")

    def callback() -> None:
        with getattr(lock, later) as lease:
            taken.append(lease.held)

    with transaction.atomic():
        with getattr(ReadWriteLock("seat", **OPTIONS), first):
            transaction.on_commit(callback)
        if first != later:
            with pytest.raises(UpgradeRefused), getattr(lock, later):
                pass  # the twin: before the COMMIT
    assert [True] == taken and view("seat").empty


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_wait_for_the_lock_of_a_transaction_goes_on_until_all_databases_have_committed(
    view,
) -> None:
    taken = []
    with transaction.atomic("other"):
        with transaction.atomic(), Lock("seat", **OPTIONS):
            transaction.on_commit(lambda: taken.append(Lock("seat").acquire(True, 0.05)))
        assert [None] == taken and 1 == view("seat").holding
    assert view("seat").empty
