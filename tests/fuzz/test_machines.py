"""Hypothesis drives the primitives on a real server, and compares them with a simple model.

The model records the holders. The journal checks the scripts.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.core.management import CommandError
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
    run_state_machine_as_test,
)

from django_redis_sync import Lease, LeaseLost, NotAcquired, ReadWriteLock, RLock, Semaphore
from django_redis_sync.exceptions import UpgradeRefused
from tests.support.commands import locks
from tests.support.journal import journalling


def fails(error: Any) -> Any:
    """Return a context that expects `error`, or nothing if it is None."""
    return pytest.raises(error) if error else contextlib.nullcontext()


FEW = settings(max_examples=15, stateful_step_count=30)
#: A lease that doesn't expire while an example runs.
LONG: dict[str, Any] = {"timeout": 60.0, "renew": False}
LOST = (NotAcquired, LeaseLost)


class Machine(RuleBasedStateMachine):
    """A machine whose examples each have a journal, a name, and three threads as callers."""

    url = ""
    count = 0

    def __init__(self) -> None:
        super().__init__()
        self.stack = contextlib.ExitStack()
        self.journal = self.stack.enter_context(journalling(self.url))
        Machine.count += 1
        self.name = f"{type(self).__name__.lower()}-{Machine.count}"
        self.people = [self.stack.enter_context(ThreadPoolExecutor(1)) for _ in range(3)]
        self.fence = 0

    def do(self, who: int, method: Any, *args: Any) -> Any:
        """Call a method in a thread. The owner of a reentrant or read/write lock is a thread."""
        return self.people[who].submit(method, *args).result(30)

    def granted(self, lease: Any) -> None:
        assert lease.fence > self.fence, "the fence did not grow"
        self.fence = lease.fence

    def status(self) -> Any:
        return Semaphore(self.name, 1).status()

    def clear(self, token: str) -> None:
        locks("clear", self.name, "--holder", token[:8], "--no-input")

    def teardown(self) -> None:
        try:
            if any(True for _ in self.journal):
                self.journal.check()
        finally:
            self.stack.close()


class SemaphoreMachine(Machine):
    """Acquire one to three permits, and release, renew, detach, adopt, clear, resize, or pause."""

    leases, handles = Bundle("leases"), Bundle("handles")

    @initialize(limit=st.integers(1, 5))
    def begin(self, limit: int) -> None:
        self.limit, self.override, self.paused = limit, 0, False
        self.held: dict[str, int] = {}

    @rule(target=leases, permits=st.integers(1, 3), fair=st.booleans())
    def take(self, permits: int, fair: bool) -> Any:
        permits = min(permits, self.limit)
        lease = Semaphore(self.name, self.limit, fair=fair, **LONG).acquire(False, permits=permits)
        free = sum(self.held.values()) + permits <= (self.override or self.limit)
        assert (free and not self.paused) == (lease is not None)
        if lease is None:
            return multiple()
        self.granted(lease)
        self.held[lease.token] = permits
        return lease

    @rule(lease=consumes(leases))
    def release(self, lease: Lease) -> None:
        with fails(None if self.held.pop(lease.token, None) else LeaseLost):
            lease.release()
        with pytest.raises(LOST):
            lease.release()

    @rule(lease=leases)
    def renew(self, lease: Lease) -> None:
        held = lease.token in self.held
        assert held == lease.owned()
        with fails(None if held else LeaseLost):
            lease.renew(60)
        assert held == lease.held
        assert not held or lease.remaining > 50

    @rule(target=handles, lease=consumes(leases))
    def detach(self, lease: Lease) -> Any:
        if lease.token in self.held:
            handle = lease.detach(60)
            assert not lease.held
            return handle, lease.token
        with pytest.raises(LeaseLost):
            lease.detach()
        return multiple()

    @rule(target=leases, handle=consumes(handles))
    def adopt(self, handle: tuple[str, str]) -> Any:
        if handle[1] in self.held:
            return Lease.from_handle(handle[0])
        with pytest.raises(LeaseLost):
            Lease.from_handle(handle[0])
        return multiple()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def cleared(self, data: Any) -> None:
        # Sort by the order of the grants, because the order of the tokens would be random.
        token = data.draw(st.sampled_from(list(self.held)))
        self.clear(token)
        del self.held[token]

    @rule(limit=st.integers(1, 5))
    def resize(self, limit: int) -> None:
        with contextlib.suppress(CommandError):  # the name was never used
            locks("resize", self.name, str(limit))
            self.override = limit

    @precondition(lambda self: self.override)
    @rule()
    def reset(self) -> None:
        locks("resize", self.name, "--reset")
        self.override = 0

    @rule()
    def pause(self) -> None:
        with contextlib.suppress(CommandError):  # the name was never used
            locks("resume" if self.paused else "pause", self.name)
            self.paused = not self.paused

    @invariant()
    def the_server_agrees(self) -> None:
        if hasattr(self, "held"):
            shown = self.status()
            assert sum(self.held.values()) == shown.in_use
            assert set(self.held) == {holder.token for holder in shown.holders}
            assert self.paused == shown.paused


class OwnersMachine(Machine):
    """Three threads use a reentrant lock and a read/write lock.

    The owner of a reentrant lock has one lease with a depth. A reader that asks for the write lock
    is rejected. A writer may become a reader.
    """

    whose, sides = st.integers(0, 2), st.sampled_from(["reader", "writer"])

    def __init__(self) -> None:
        super().__init__()
        self.owner, self.depth, self.lost = None, 0, False  # type: int | None, int, bool
        # Two objects of the name, because the thread owns the lock and not the object.
        self.locks = [RLock(self.name, **LONG) for _ in range(2)]
        self.pairs = [ReadWriteLock(f"{self.name}-rw", **LONG) for _ in range(3)]
        self.roles = ["", "", ""]

    @rule(who=whose, which=st.integers(0, 1))
    def take(self, who: int, which: int) -> None:
        acquire = self.locks[which].acquire
        if self.owner == who and self.lost:
            with pytest.raises(LeaseLost):
                self.do(who, acquire, False)
            return
        lease = self.do(who, acquire, False)
        assert (lease is not None) == (self.owner in (None, who) or self.lost)
        if self.owner == who:
            self.depth += 1
        elif self.owner is None:
            self.owner, self.depth = who, 1
        elif lease:  # the former owner has not noticed its loss yet
            self.do(who, self.locks[which].release)

    @rule(who=whose, which=st.integers(0, 1))
    def release(self, who: int, which: int) -> None:
        mine = self.owner == who
        self.depth -= mine
        error = (LeaseLost if self.lost and not self.depth else None) if mine else NotAcquired
        with fails(error):
            self.do(who, self.locks[which].release)
        if mine and not self.depth:
            self.owner, self.lost = None, False

    @precondition(lambda self: self.owner is not None and not self.lost)
    @rule()
    def cleared(self) -> None:
        """Clear the lease, and let its owner notice the loss."""
        self.clear(self.status().holders[0].token)
        self.lost = True
        with pytest.raises(LeaseLost):
            self.do(self.owner, self.locks[0].reacquire)

    @rule(who=whose, side=sides)
    def acquire_side(self, who: int, side: str) -> None:
        pair, role, others = self.pairs[who], self.roles[who], [*self.roles]
        acquire = (pair.read if side == "reader" else pair.write).acquire
        others.pop(who)
        if role and role != side:
            with pytest.raises(UpgradeRefused):
                self.do(who, acquire, False)
        elif not role:
            lease = self.do(who, acquire, False)
            free = "writer" not in others and (side == "reader" or not any(others))
            assert free == (lease is not None)
            self.roles[who] = side if lease else ""

    @rule(who=whose)
    def downgrade(self, who: int) -> None:
        writes = self.roles[who] == "writer"
        with fails(None if writes else NotAcquired):
            assert self.do(who, self.pairs[who].downgrade).held
            self.roles[who] = "reader"

    @rule(who=whose)
    def release_side(self, who: int) -> None:
        pair, role = self.pairs[who], self.roles[who]
        side = pair.write if role == "writer" else pair.read
        with fails(None if role else NotAcquired):
            self.do(who, side.release)
        self.roles[who] = ""

    @invariant()
    def the_server_agrees(self) -> None:
        held = self.owner is not None and not self.lost
        assert held == bool(self.status().holders)
        if self.owner is not None:
            assert held == self.do(self.owner, self.locks[0].owned)
        shown = Semaphore(f"{self.name}-rw", 1).status()
        assert sum(map(bool, self.roles)) == shown.holding
        assert ("writer" in self.roles) == shown.exclusive


@pytest.mark.promise(1, 9, 10, 15, 16, 26)
@pytest.mark.parametrize("machine", [SemaphoreMachine, OwnersMachine])
def test_random_calls_agree_with_the_model(
    redis_url: str, clean_redis: None, machine: type[Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Machine, "url", redis_url)
    run_state_machine_as_test(machine, settings=FEW)
