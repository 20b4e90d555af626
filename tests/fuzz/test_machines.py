"""Hypothesis drives each primitive on a real server, and compares it with a simple model in Python.

The model records the holders. The journal checks the scripts.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from django_redis_sync import Lease, LeaseLost, Lock, NotAcquired, ReadWriteLock, RLock, Semaphore
from django_redis_sync.exceptions import UpgradeRefused
from django_redis_sync.operators import actions
from django_redis_sync.operators.status import status_of
from tests.support.journal import journalling

FEW = settings(max_examples=15, stateful_step_count=30)
#: A lease that doesn't expire while an example runs.
LONG = {"timeout": 60.0, "renew": False}


class Person:
    """A thread. The owner of a reentrant or read/write lock is a thread."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)

    def do(self, what: Any, *args: Any, **options: Any) -> Any:
        return self._pool.submit(what, *args, **options).result(30)

    def close(self) -> None:
        self._pool.shutdown()


class JournaledMachine(RuleBasedStateMachine):
    """A machine whose examples each have a journal and their own name."""

    url = ""
    _count = 0

    def __init__(self) -> None:
        super().__init__()
        self._stack = contextlib.ExitStack()
        self.journal = self._stack.enter_context(journalling(self.url))
        JournaledMachine._count += 1
        self.name = f"{type(self).__name__.lower()}-{JournaledMachine._count}"
        self.people = [Person() for _ in range(3)]
        for person in self.people:
            self._stack.callback(person.close)

    def teardown(self) -> None:
        try:
            if any(True for _ in self.journal):
                self.journal.check()
        finally:
            self._stack.close()


class SemaphoreMachine(JournaledMachine):
    """Acquire one to three permits, release, renew, detach, adopt, clear, resize, pause."""

    leases = Bundle("leases")
    handles = Bundle("handles")

    @initialize(limit=st.integers(1, 5))
    def begin(self, limit: int) -> None:
        self.limit, self.override, self.paused = limit, None, False
        self.held: dict[str, int] = {}
        self.fence = 0

    @rule(target=leases, permits=st.integers(1, 3), fair=st.booleans())
    def take(self, permits: int, fair: bool) -> Any:
        permits = min(permits, self.limit)
        sem = Semaphore(self.name, self.limit, fair=fair, **LONG)
        lease = sem.acquire(False, permits=permits)
        limit = self.override or self.limit
        fits = not self.paused and sum(self.held.values()) + permits <= limit
        assert fits == (lease is not None)
        if lease is None:
            return multiple()
        assert lease.fence > self.fence
        self.fence, self.held[lease.token] = lease.fence, permits
        return lease

    @rule(lease=consumes(leases))
    def release(self, lease: Lease) -> None:
        if self.held.pop(lease.token, None):
            lease.release()
        else:
            with pytest.raises(LeaseLost):
                lease.release()
        with pytest.raises((NotAcquired, LeaseLost)):
            lease.release()

    @rule(lease=leases)
    def renew(self, lease: Lease) -> None:
        is_held = lease.token in self.held
        assert is_held == lease.owned()
        if is_held:
            lease.renew(60)
            assert lease.held and lease.remaining > 50
        else:
            with pytest.raises(LeaseLost):
                lease.renew()
            assert not lease.held

    @rule(target=handles, lease=consumes(leases))
    def detach(self, lease: Lease) -> Any:
        if lease.token not in self.held:
            with pytest.raises(LeaseLost):
                lease.detach()
            return multiple()
        handle = lease.detach(60)
        assert not lease.held
        return handle, lease.token

    @rule(target=leases, handle=consumes(handles))
    def adopt(self, handle: tuple[str, str]) -> Any:
        if handle[1] not in self.held:
            with pytest.raises(LeaseLost):
                Lease.from_handle(handle[0])
            return multiple()
        return Lease.from_handle(handle[0])

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def clear(self, data: Any) -> None:
        # In the order of the grants: the order of the tokens would be random.
        token = data.draw(st.sampled_from(list(self.held)))
        shown = status_of(self.name)
        assert [True] == [cleared.done for cleared in actions.clear(shown, [token])]
        del self.held[token]

    @rule(limit=st.integers(1, 5))
    def resize(self, limit: int) -> None:
        if status_of(self.name).kind == "plain":
            actions.resize(self.name, None, limit)
            self.override = limit

    @rule()
    def reset(self) -> None:
        actions.reset(self.name)
        self.override = None

    @rule()
    def pause(self) -> None:
        (actions.resume if self.paused else actions.pause)(self.name)
        self.paused = not self.paused

    @invariant()
    def the_server_agrees(self) -> None:
        if not hasattr(self, "held"):
            return
        shown = status_of(self.name)
        assert sum(self.held.values()) == shown.in_use
        assert set(self.held) == {holder.token for holder in shown.holders}
        assert self.paused == shown.paused


class RLockMachine(JournaledMachine):
    """Three threads acquire one name repeatedly. The owner has one lease with a depth."""

    def __init__(self) -> None:
        super().__init__()
        self.owner: int | None = None
        self.depth, self.lost, self.fence = 0, False, 0
        # Two objects of the name, because the thread owns the lock and not the object.
        self.locks = [RLock(self.name, **LONG) for _ in range(2)]

    @rule(who=st.integers(0, 2), which=st.integers(0, 1))
    def take(self, who: int, which: int) -> None:
        lock, person = self.locks[which], self.people[who]
        if self.owner == who and self.lost:
            with pytest.raises(LeaseLost):
                person.do(lock.acquire, False)
            return
        lease = person.do(lock.acquire, False)
        free = self.owner is None or self.owner == who or self.lost
        assert free == (lease is not None)
        if lease is None or not free:
            return
        if self.owner == who:
            assert self.fence == lease.fence
            self.depth += 1
        elif self.owner is None:
            assert lease.fence > self.fence
            self.owner, self.depth, self.fence = who, 1, lease.fence
        else:  # the former owner has not noticed its loss yet
            assert lease.fence > self.fence
            self.fence = lease.fence
            person.do(lock.release)

    @rule(who=st.integers(0, 2), which=st.integers(0, 1))
    def release(self, who: int, which: int) -> None:
        lock, person = self.locks[which], self.people[who]
        if self.owner != who:
            with pytest.raises(NotAcquired):
                person.do(lock.release)
            return
        self.depth -= 1
        if self.depth == 0 and self.lost:
            with pytest.raises(LeaseLost):
                person.do(lock.release)
        else:
            person.do(lock.release)
        if self.depth == 0:
            self.owner, self.lost = None, False

    @precondition(lambda self: self.owner is not None and not self.lost)
    @rule()
    def clear(self) -> None:
        """Clear the lease, and let its owner notice the loss."""
        shown = status_of(self.name)
        (done,) = actions.clear(shown, [shown.holders[0].token])
        assert done.done
        self.lost = True
        assert self.owner is not None
        with contextlib.suppress(LeaseLost):
            self.people[self.owner].do(self.locks[0].reacquire)

    @invariant()
    def the_server_agrees(self) -> None:
        held = self.owner is not None and not self.lost
        assert held == Lock(self.name).locked()
        if self.owner is not None:
            assert held == self.people[self.owner].do(self.locks[0].owned)


class ReadWriteMachine(JournaledMachine):
    """Readers or one writer. Upgrades are rejected, and a writer may become a reader."""

    def __init__(self) -> None:
        super().__init__()
        self.locks = [ReadWriteLock(self.name, **LONG) for _ in range(3)]
        self.roles: list[str] = ["", "", ""]
        self.fence = 0

    @rule(who=st.integers(0, 2))
    def read(self, who: int) -> None:
        if self.roles[who]:
            return
        lease = self.people[who].do(self.locks[who].read.acquire, False)
        assert ("writer" not in self.roles) == (lease is not None)
        self._got(who, lease, "reader")

    @rule(who=st.integers(0, 2))
    def write(self, who: int) -> None:
        if self.roles[who]:
            return
        lease = self.people[who].do(self.locks[who].write.acquire, False)
        assert (not any(self.roles)) == (lease is not None)
        self._got(who, lease, "writer")

    def _got(self, who: int, lease: Lease | None, role: str) -> None:
        if lease:
            assert lease.fence > self.fence
            self.fence, self.roles[who] = lease.fence, role

    @rule(who=st.integers(0, 2), side=st.sampled_from(["reader", "writer"]))
    def acquire_other_side(self, who: int, side: str) -> None:
        """Check that a holder of one side can't acquire the other side."""
        if not self.roles[who] or self.roles[who] == side:
            return
        lock = self.locks[who]
        with pytest.raises(UpgradeRefused):
            self.people[who].do((lock.read if side == "reader" else lock.write).acquire, False)

    @rule(who=st.integers(0, 2))
    def downgrade(self, who: int) -> None:
        if self.roles[who] == "writer":
            lease = self.people[who].do(self.locks[who].downgrade)
            assert lease.held and self.fence == lease.fence
            self.roles[who] = "reader"
        else:
            with pytest.raises(NotAcquired):
                self.people[who].do(self.locks[who].downgrade)

    @rule(who=st.integers(0, 2))
    def release(self, who: int) -> None:
        lock = self.locks[who]
        side = lock.write if self.roles[who] == "writer" else lock.read
        if self.roles[who]:
            self.people[who].do(side.release)
            self.roles[who] = ""
        else:
            with pytest.raises(NotAcquired):
                self.people[who].do(side.release)

    @invariant()
    def the_server_agrees(self) -> None:
        shown = status_of(self.name)
        assert len([role for role in self.roles if role]) == shown.holding
        assert ("writer" in self.roles) == shown.exclusive


class QueueMachine(JournaledMachine):
    """Waiters for two permits are granted in the order of their arrival."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Lease] = []
        self.waiting: list[tuple[threading.Thread, list[Any]]] = []

    @precondition(lambda self: len(self.waiting) < 4)
    @rule()
    def acquire(self) -> None:
        got: list[Any] = []

        def wait() -> None:
            got.append(Semaphore(self.name, 2, **LONG).acquire(blocking_timeout=20))

        thread = threading.Thread(target=wait)
        thread.start()
        self.waiting.append((thread, got))
        before = len(self.waiting)
        if len(self.held) < 2:
            self._served()
        else:
            while status_of(self.name).waiting < before and not got:
                pass
        assert len(self.held) <= 2

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 1))
    def release(self, which: int) -> None:
        self.held.pop(which % len(self.held)).release()
        if self.waiting:
            self._served()

    def _served(self) -> None:
        thread, got = self.waiting.pop(0)
        thread.join(30)
        (lease,) = got
        assert lease, "the first waiter was not granted next"
        assert not self.held or lease.fence > max(held.fence for held in self.held)
        self.held.append(lease)

    @invariant()
    def no_permit_is_free_while_a_thread_waits(self) -> None:
        assert not self.waiting or len(self.held) == 2

    def teardown(self) -> None:
        while self.held:
            self.release(0)
        super().teardown()


@pytest.fixture(autouse=True)
def on_this_server(redis_url: str, clean_redis: None) -> None:
    JournaledMachine.url = redis_url


def in_test(machine: type[JournaledMachine]) -> Any:
    case = machine.TestCase
    case.settings = FEW
    return pytest.mark.usefixtures("on_this_server")(case)


TestSemaphore = in_test(SemaphoreMachine)
TestRLock = in_test(RLockMachine)
TestReadWriteLock = in_test(ReadWriteMachine)
TestQueue = in_test(QueueMachine)
