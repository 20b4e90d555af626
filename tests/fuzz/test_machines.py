"""With Hypothesis, make random calls on a semaphore, and compare its status with a simple model.

The model only records the holders. The calls run on a real Redis server, and the checker of the
journal (tests/support/history.py) checks each script that they run.
"""

from __future__ import annotations

import contextlib
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
    run_state_machine_as_test,
)

from django_redis_sync import Lease, LeaseLost, NotAcquired, Semaphore
from tests.support.commands import locks
from tests.support.journal import journalling

FEW = settings(max_examples=15, stateful_step_count=30)
#: Options of a lease that doesn't expire while Hypothesis runs an example.
LONG: dict[str, Any] = {"timeout": 60.0, "renew": False}
LOST = (NotAcquired, LeaseLost)


class SemaphoreMachine(RuleBasedStateMachine):
    """Each rule is a call that Hypothesis may make, with its expected result.

    Each example, a sequence of random calls, has a name and a journal of its own."""

    url = ""
    count = 0
    leases, handles = Bundle("leases"), Bundle("handles")

    def __init__(self) -> None:
        super().__init__()
        self.stack = contextlib.ExitStack()
        self.journal = self.stack.enter_context(journalling(self.url))
        SemaphoreMachine.count += 1
        self.name, self.fence = f"machine-{SemaphoreMachine.count}", 0

    def teardown(self) -> None:
        try:
            if any(True for _ in self.journal):
                self.journal.check()
        finally:
            self.stack.close()

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
        assert lease.fence > self.fence, "the fence did not grow"
        self.fence = lease.fence
        self.held[lease.token] = permits
        return lease

    @rule(lease=consumes(leases))
    def release(self, lease: Lease) -> None:
        lost = None if self.held.pop(lease.token, None) else pytest.raises(LeaseLost)
        with lost or contextlib.nullcontext():
            lease.release()
        with pytest.raises(LOST):
            lease.release()

    @rule(lease=leases)
    def renew(self, lease: Lease) -> None:
        held = lease.token in self.held
        assert held == lease.owned()
        with contextlib.nullcontext() if held else pytest.raises(LeaseLost):
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
        # `held` is in the order of the grants, so Hypothesis can repeat this choice.
        token = data.draw(st.sampled_from(list(self.held)))
        locks("clear", self.name, "--holder", token[:8], "--no-input")
        del self.held[token]

    @precondition(lambda self: self.fence)  # the command waits a second for an unknown name
    @rule(limit=st.integers(1, 5))
    def resize(self, limit: int) -> None:
        locks("resize", self.name, str(limit))
        self.override = limit

    @precondition(lambda self: self.override)
    @rule()
    def reset(self) -> None:
        locks("resize", self.name, "--reset")
        self.override = 0

    @precondition(lambda self: self.fence)
    @rule()
    def pause(self) -> None:
        locks("resume" if self.paused else "pause", self.name)
        self.paused = not self.paused

    @invariant()
    def the_server_agrees(self) -> None:
        if hasattr(self, "held"):
            shown = Semaphore(self.name, 1).status()
            assert sum(self.held.values()) == shown.in_use
            assert set(self.held) == {holder.token for holder in shown.holders}
            assert self.paused == shown.paused


@pytest.mark.promise(1, 9, 10, 15, 26)
def test_semaphore_agrees_with_the_model_after_random_calls(
    redis_url: str, clean_redis: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SemaphoreMachine, "url", redis_url)
    run_state_machine_as_test(SemaphoreMachine, settings=FEW)
