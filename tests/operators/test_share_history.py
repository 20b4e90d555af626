"""The history of shares: which shares had the most permits, by the quarter of an hour."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis
from django.conf import settings

from django_redis_sync import Semaphore
from django_redis_sync.engine import shares
from tests.behaviour.both import eventually
from tests.support.operators import as_json, locks
from tests.support.renewers import fresh_renewer  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("raw", "fresh_renewer")
KEY = f"{settings.PREFIX}:{{exports}}:samples"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "INTERVAL", 0.2)


def take(share: str, permits: int) -> Any:
    return Semaphore("exports", 100, share=share, timeout=60).acquire(permits=permits)


def heaviest() -> list[str]:
    found = as_json("history", "exports")["shares"]
    return [one["share"] for one in found[-1]["heaviest"]] if found else []


def test_history_shows_the_heaviest_shares_after_they_have_ended() -> None:
    leases = [take("small one", 1), take("acme", 6), take("other", 3)]
    eventually(lambda: heaviest() == ["acme", "other", "small one"])
    for lease in leases:
        lease.release()
    text = locks("history", "exports")
    assert "HEAVIEST SHARES" in text and "acme 60 %, other 30 %, small one 10 %" in text
    time.sleep(0.5)  # the process holds nothing at the next sample
    later = take("later", 1)
    eventually(lambda: "later" in heaviest())
    later.release()


def test_history_of_shares_is_bounded(raw: redis.Redis) -> None:
    minute = raw.time()[0] // 60
    old, quarter = f"{minute - 25 * 60}:old", minute // 15 * 15
    starts = quarter, quarter + 15  # the next quarter may begin during the test
    samples = {f"{start}:t{n:02}": 1000 + n for start in starts for n in range(12)}
    raw.hset(KEY, mapping={old: 5, **samples})
    lease = take("light", 1)
    eventually(lambda: not raw.hexists(KEY, old))
    lease.release()
    fields = [field.decode().partition(":") for field in raw.hkeys(KEY)]
    kept = [{share for at, _, share in fields if at == str(start)} for start in starts]
    most = {f"t{n:02}" for n in range(2, 12)}
    assert most in kept or most | {"light"} in kept, "heavy shares were removed"
    assert 0 < raw.pttl(KEY) <= 24 * 3600 * 1000


def test_history_of_shares_has_the_quarters_of_the_requested_period(raw: redis.Redis) -> None:
    start = raw.time()[0] // 60 // 15 * 15
    samples = {f"{start - 180}:old": 5, f"{start - 30}:less": 1, f"{start - 30}:most": 3}
    raw.hset(KEY, mapping=samples)

    def shown(since: str) -> list[list[str]]:
        found = as_json("history", "exports", "--since", since)["shares"]
        return [[one["share"] for one in quarter["heaviest"]] for quarter in found]

    with Semaphore("exports", 100):
        eventually(lambda: raw.exists(f"{settings.PREFIX}:names"))
        assert [["most", "less"]] == shown("1h")
        assert [["old"], ["most", "less"]] == shown("4h")


def test_name_without_shares_has_no_history_of_shares(raw: redis.Redis) -> None:
    with Semaphore("exports", 100):
        eventually(lambda: raw.exists(f"{settings.PREFIX}:names"))
    with Semaphore("exports", 100):
        assert "HEAVIEST" not in locks("history", "exports")
    assert not raw.exists(KEY)
