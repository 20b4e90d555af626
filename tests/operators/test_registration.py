"""Operators find every name that is held or wanted, also after its process was killed."""

from __future__ import annotations

import math
import os
from typing import Any

import pytest
import redis
from django.conf import settings

from django_redis_sync import Lock, Semaphore
from django_redis_sync.engine.indexes import HolderIndex
from django_redis_sync.operators.names import Recent, held_since, is_known, names_in_use
from tests.behaviour.both import both, until
from tests.support import worker_processes
from tests.support.commands import locks
from tests.support.renewers import fresh_renewer  # noqa: F401 - a fixture

from .test_doctor import examine

pytestmark = pytest.mark.promise(25)

#: Ways to get a permanent lease of "job", as the code of a process that then ends at once.
WAYS = {
    "acquire": "Lock('job', timeout=math.inf).acquire()",
    "with": "Lock('job', timeout=math.inf).__enter__()",
    "async acquire": "asyncio.run(Lock('job', timeout=math.inf).aacquire())",
    "async with": "asyncio.run(Lock('job', timeout=math.inf).__aenter__())",
    "reader": "ReadWriteLock('job', timeout=math.inf).read.acquire()",
    "share": "Semaphore('job', 2, timeout=math.inf, share='a').acquire()",
    "all": "acquire_all([Lock('job', timeout=math.inf)]).acquire()",
    "renewal": "Lock('job').acquire().renew(math.inf)",
    "detach": "Lock('job').acquire().detach(math.inf)",
    "handle": "Lease.from_handle(Lock('job', timeout=math.inf).acquire().detach())",
}


def run_and_kill(code: str) -> None:
    """Run `code` in a process that ends without any cleanup as soon as the code has run."""
    imports = "import asyncio, math, os, django\ndjango.setup()\n"
    imports += "from django_redis_sync import *\n"
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    done = worker_processes.run("-c", f"{imports}kept = {code}\nos._exit(7)", env=env)
    assert done.returncode == 7, done.stderr


def forget(raw: redis.Redis, *registries: bytes) -> None:
    """Remove the registries with these names. The entries of those that have an expiry are removed
    a day after the last use of a name."""
    for key in raw.keys(f"{settings.PREFIX}:*"):
        if key.rpartition(b":")[2] in registries:
            raw.delete(key)


@pytest.mark.parametrize("way", WAYS)
def test_permanent_lease_is_listed_if_its_process_ends_at_once(raw: redis.Redis, way: str) -> None:
    run_and_kill(WAYS[way])
    for _ in ("at once", "a day later"):
        assert [("job", None)] == names_in_use() == list(held_since())
        assert ["job"] == Recent().every() and is_known("job")
        assert "job" in locks("status")
        assert "Permits of job stay in use until" in examine("default")["permanent"].detail
        forget(raw, b"names", b"keys", b"made", b"families")


def test_permanent_lease_of_a_key_is_listed_if_its_process_ends_at_once(raw: redis.Redis) -> None:
    run_and_kill("Semaphore('api', 1, key='k1', timeout=math.inf).acquire()")
    for _ in ("at once", "a day later"):
        assert [("api", "k1")] == names_in_use()
        assert is_known("api") and is_known("api", "k1") and not is_known("api", "k2")
        assert "k1" in locks("status", "api", "--key", "k1")
        forget(raw, b"names", b"keys", b"made", b"families")


@both
async def test_name_is_registered_by_callers_that_are_rejected_or_wait(
    io: Any,
    raw: redis.Redis,
    fresh_renewer: None,  # noqa: F811
) -> None:
    run_and_kill("Lock('rejects', timeout=60).acquire(), Lock('awaited', timeout=60).acquire()")
    forget(raw, b"names", b"holders")
    assert [] == names_in_use()
    assert await io.do(Lock("rejects", blocking=False), "acquire") is None
    waiting = io.start(io.do(Lock("awaited", blocking_timeout=3), "acquire"))
    await until(io, lambda: {("rejects", None), ("awaited", None)} == {*names_in_use()})
    assert await io.result(waiting) is None


@both
async def test_index_forgets_a_permanent_lease_that_was_released(
    io: Any,
    raw: redis.Redis,
    fresh_renewer: None,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(HolderIndex, "interval", 0.05)
    for _ in range(2):
        lease = await io.do(Lock("brief", timeout=math.inf), "acquire")
        other = await io.do(Semaphore("other", 2), "acquire")
        await io.do(other, "renew", math.inf)
        assert [("brief", None), ("other", None)] == list(held_since())
        for one in (lease, other):
            await io.do(one, "release")
        await until(io, lambda: held_since() == {})
