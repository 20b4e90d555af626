"""Permits can be released after the COMMIT or rollback of a transaction instead of before it."""

import contextlib
import gc
import threading
import time
import warnings

import pytest
from django.contrib.auth.models import Group
from django.db import connection, connections, transaction
from django.http import HttpResponse
from django.test import RequestFactory, TestCase

from django_redis_sync import (
    LeaseLost,
    Lock,
    RLock,
    Semaphore,
    acquire_all,
    semaphore_required,
    synchronized,
)
from django_redis_sync.exceptions import TransactionRace
from tests.behaviour.both import eventually
from tests.behaviour.watching import View, sent

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.promise(23)]
in_transactions = pytest.mark.django_db(transaction=True)
both_databases = pytest.mark.django_db(transaction=True, databases=["default", "other"])


def is_held(name="stock"):
    return Lock(name).locked()


def lock(**options):
    """Return the lock "stock". In a transaction, it is released only when the transaction ends."""
    return Lock("stock", release_on_commit=True, **options)


def use(block):
    """Enter and leave the block."""
    with block:
        pass


def lose(lease, raw):
    raw.flushdb()
    with contextlib.suppress(LeaseLost):
        lease.renew()


class Failed(Exception):
    pass


def acquire_and_release(stock):
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
EACH_WAY = pytest.mark.parametrize("use_stock", WAYS.values(), ids=WAYS)


# release_on_commit


@pytest.mark.parametrize("end", ["commit", "rollback"])
@EACH_WAY
@in_transactions
def test_lock_with_release_on_commit_is_released_when_the_transaction_has_ended(
    held_at_end, use_stock, end
):
    with contextlib.suppress(Failed), transaction.atomic():
        use_stock(release_on_commit=True)
        assert is_held()
        if end == "rollback":
            raise Failed
    assert [True] == held_at_end
    assert not is_held()


@in_transactions
def test_release_waits_only_for_the_transaction_of_its_own_thread():
    found, taken, ended = [], threading.Event(), []

    def work():
        use(lock())
        found.append(is_held())  # this thread has no connection yet, and no transaction
        for _ in range(2):
            with transaction.atomic():
                use(lock())
                found.append(is_held())
                taken.set()
                time.sleep(0.3)
                ended.append(True)
            connection.close()
        connection.connection.close()  # close() does not close a database in memory

    thread = threading.Thread(target=work)
    with transaction.atomic():
        thread.start()
        assert taken.wait(30)
        use(lock())
        assert ended
    thread.join()
    assert [False, True, True] == found


@in_transactions
def test_acquire_raises_when_it_would_wait_for_its_own_transaction():
    stock = lock()
    with transaction.atomic():
        use(stock)
        use(RLock("again", release_on_commit=True))
        again = Lock("again", release_on_commit=True, blocking_timeout=5)
        for waiting in (stock, lock(blocking_timeout=5), again):
            with pytest.raises(RuntimeError, match=r"until the open transaction ends.*RLock"):
                waiting.acquire()
        assert stock.acquire(blocking=False) is None  # without waiting, the acquire does not raise
        for _ in range(2):  # each use takes one more permit until the commit
            use(Semaphore("seats", 2, release_on_commit=True))
    use(stock)


@in_transactions
def test_lease_is_renewed_until_the_commit(raw):
    with transaction.atomic():
        use(lock(timeout=3, renew=True))
        gc.collect()
        eventually(View(raw, "stock").renewals())
        assert is_held()
    assert not is_held()


@both_databases
@pytest.mark.parametrize("using", [None, "default", "other"])
def test_atomic_begins_its_transaction_on_the_given_database(using):
    with Lock("one").atomic(using):
        begun = [alias for alias in connections if connections[alias].in_atomic_block]
        assert is_held("one")
    assert [using or "default"] == begun
    assert not is_held("one")


@both_databases
def test_release_on_commit_waits_for_one_database_if_its_alias_is_given():
    with transaction.atomic(), lock():
        with transaction.atomic("other"):
            use(Lock("both", release_on_commit=True))
            use(Lock("one", release_on_commit="other"))
            assert is_held("one")
        assert is_held("both")  # the transaction on "default" has not ended
        assert not is_held("one")
        use(Lock("one", release_on_commit="other"))
        assert not is_held("one")
    assert [False, False] == [is_held("both"), is_held()]
    with pytest.raises(TypeError, match="a bool or a database's alias"):
        Lock("stock", release_on_commit=1)


@in_transactions
def test_lease_is_released_when_the_savepoint_in_which_it_began_is_rolled_back():
    with transaction.atomic():
        with contextlib.suppress(Failed), transaction.atomic():
            use(lock())
            assert is_held()
            raise Failed
        gc.collect()
        assert not is_held()
        with transaction.atomic():
            use(lock())
        assert is_held()  # the outer transaction commits this savepoint later
    assert not is_held()


@in_transactions
def test_failed_acquire_all_releases_its_locks_before_the_transaction_ends():
    several = acquire_all([lock(), Semaphore("taken", 1)], blocking=False)
    with Semaphore("taken", 1), transaction.atomic():
        assert several.acquire() is None
        assert not is_held(), "the lock stays held until the commit"


# lock.atomic()


@pytest.mark.parametrize("error", [None, Failed, LeaseLost])
@in_transactions
def test_lock_atomic_releases_the_lock_after_its_transaction_has_ended(held_at_end, raw, error):
    raised = None
    try:
        with Lock("stock").atomic() as lease:
            assert connection.in_atomic_block and lease.held
            Group.objects.create(name="a")
            if error is Failed:
                raise Failed
            if error is LeaseLost:
                lose(lease, raw)
    except (Failed, LeaseLost) as found:
        raised = type(found)
    assert (error, [error is not LeaseLost]) == (raised, held_at_end)
    assert not is_held()
    assert (error is None) == Group.objects.exists()


@in_transactions
def test_with_statement_in_a_transaction_raises_lease_lost_when_its_block_ends(raw):
    with transaction.atomic(), pytest.raises(LeaseLost), lock() as lease:
        lose(lease, raw)


@in_transactions
def test_lock_atomic_inside_a_transaction_raises_without_asking_redis():
    raises = pytest.raises(
        RuntimeError, match=r"durable.*non_atomic_requests.*release_on_commit=True"
    )
    with transaction.atomic(), sent() as commands, raises, Lock("stock").atomic():
        pass
    assert {} == commands.by_name


class InATestCase(TestCase):
    """The transaction that TestCase begins around each test does not delay a release."""

    def test_lease_is_released_immediately_if_the_tested_code_began_no_transaction(self):
        for _ in range(2):
            use(lock(blocking_timeout=5))
        with Lock("stock").atomic():
            assert connection.in_atomic_block
        assert not is_held()

    def test_release_happens_when_a_test_case_runs_on_commit_callbacks_or_ends(self):
        with self.captureOnCommitCallbacks(execute=True):
            with transaction.atomic(), lock() as lease:
                pass
            assert lease.held
        assert lease.ended
        with transaction.atomic(), lock() as lease:
            pass
        assert lease.held
        self.addClassCleanup(lambda: self.assertTrue(lease.ended))

    def test_release_causes_no_warning_inside_a_django_test_case(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            respond()


# The warning


def respond():
    view = semaphore_required("one", limit=1)(lambda request: HttpResponse())
    assert 200 == view(RequestFactory().get("/")).status_code


@in_transactions
def test_release_before_commit_warns_only_if_DEBUG_is_true(settings):
    settings.DEBUG = True
    with transaction.atomic(), pytest.warns(TransactionRace, match="ConcurrencyLimitMiddleware"):
        respond()
    respond()
    settings.DEBUG = False
    with transaction.atomic():
        respond()


@EACH_WAY
@in_transactions
def test_warning_points_to_the_file_of_the_code_that_releases_the_lock(settings, use_stock):
    settings.DEBUG = True
    with transaction.atomic(), pytest.warns(TransactionRace) as warned:
        use_stock()
    assert [__file__] == [one.filename for one in warned]


@in_transactions
def test_release_before_commit_is_logged_once_per_name_if_DEBUG_is_false(caplog, monkeypatch):
    monkeypatch.setattr("django_redis_sync.locks.transactions._logged", set())
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
    assert 20 == len(lines), "names that contain arguments fill the log"
