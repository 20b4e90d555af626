"""The registry of names, the index of holders, and the states of names."""

import math
import time
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
import redis
from django.conf import settings

from django_redis_sync import Lock, NotAcquired, Semaphore
from django_redis_sync.engine import indexes, names
from django_redis_sync.exceptions import ForeignValue
from django_redis_sync.operators.names import Recent
from tests.behaviour.both import both, eventually
from tests.support import statuses as make
from tests.support.operators import act, as_json, failed, has_free_permit, locks, status_of
from tests.support.renewers import fresh_renewer, listed, waiting_threads  # noqa: F401 - fixtures
from tests.support.screens import by_name

pytestmark = pytest.mark.usefixtures("fresh_renewer")

REGISTRY, HOLDERS = f"{settings.PREFIX}:names", f"{settings.PREFIX}:holders"
KEYS = f"{settings.PREFIX}:{{api}}:keys"


def shown(*words: str) -> list[str]:
    """Return the display names that `locks status --sort recent` lists, in order."""
    return [one["display"] for one in as_json("status", "--sort", "recent", *words)["names"]]


def test_registry_of_names_drops_old_names_and_does_not_exceed_its_maximum_size(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "MAX_REGISTERED", 3)
    now = raw.time()[0] * 1000
    old = now - 86_400_000 - 5000
    raw.zadd(REGISTRY, {"yesterday": old, "a": now - 3, "b": now - 2, "c": now - 1})
    with Lock("new"):
        eventually(lambda: raw.zcard(REGISTRY) == 3)
    assert [b"b", b"c", b"new"] == raw.zrange(REGISTRY, 0, -1)
    eventually(lambda: 0 < raw.pttl(REGISTRY) <= 2 * 86_400_000)


def test_invalid_names_in_the_registry_are_skipped(raw: redis.Redis) -> None:
    invalid = {"": 2, "b\x07": 3, "c" * 9999: 4}
    raw.zadd(REGISTRY, {"a": 1, **invalid, "d": 5, "api@": 6})
    raw.zadd(KEYS, {"k": 1, **invalid, "l": 5})
    assert ["api@l", "api@k", "d", "a"] == shown()
    raw.zadd(HOLDERS, invalid)
    assert ["api@l", "api@k", "d", "a"] == shown()


def test_status_contains_the_number_of_holders_and_of_permits_in_use() -> None:
    with Semaphore("x", 5).acquire(permits=3), Semaphore("x", 5).acquire(permits=1):
        status = status_of("x")
    assert (4, 2) == (status.in_use, status.holding)


def test_status_lists_configured_and_paused_names_before_recently_used_names(
    raw: redis.Redis, settings: Any
) -> None:
    raw.zadd(REGISTRY, ranks := {f"n{n}": n for n in range(4)})
    raw.zadd(KEYS, ranks)
    for key in ("vip", "n2"):
        act("pause", "api", key=key)
    act("pause", "other", key="7")
    semaphores = {name: {"limit": 3} for name in ("s1", "s2", "n1")}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "SEMAPHORES": semaphores}
    names = ["api", "other", "s1", "s2", "n3", "n2", "n1", "n0"]
    keys = ["vip", "n3", "n2", "n1", "n0"]
    for top in range(1, 9):
        found = as_json("status", "--sort", "recent", "--top", str(top))
        assert names[:top] == [*dict.fromkeys(one["name"] for one in found["names"])]
        found = as_json("status", "api", "--sort", "recent", "--top", str(top))
        assert keys[:top] == [one["key"] for one in found["names"]]
        assert (5, min(5, top)) == (found["found"], found["policies"][0]["read"])
    for size in (1, 2, 3, 5):
        for wanted, policy in ((names, None), (keys, "api")):
            known = Recent(policy)
            pages = [known[start : start + size] for start in range(0, len(known), size)]
            assert wanted == [one for page in pages for one in page], f"pages of {size}"


def test_policy_has_the_longest_wait_of_its_keys_and_is_paused_if_all_keys_are() -> None:
    long = make.status(key="long", waiters=(make.waiter(waits=9), make.waiter(waits=1)))
    short = make.status(key="short", waiters=(make.waiter(waits=5), make.waiter(waits=4)))
    idle = make.status(key="idle", paused_since=make.ago(60))
    assert [make.group(long, short, idle).longest_waiting, make.group(idle).longest_waiting] == [
        *(long, None)
    ]
    paused = [make.group(*keys).paused for keys in ((idle, long), (long, idle), (idle, idle))]
    assert [False, False, True] == paused


def test_status_knows_a_key_that_is_exempt_from_the_pause_of_its_policy() -> None:
    act("pause", "api")
    act("resume", "api", key="7")
    assert locks("status", "api", "--key", "7").startswith("api@7: free")
    act("resume", "api")
    assert "Unknown name: api@7." in failed("status", "api", "--key", "7")[1]


def test_key_can_be_exempt_from_the_changed_limit_of_its_policy_until_that_is_reset() -> None:
    with Semaphore("api", 2, key="7"), Semaphore("api", 2, key="8"):
        for words, free in (
            (("resize", "api", "1"), [False, False]),
            (("resize", "api", "--reset", "--key", "7"), [True, False]),
            (("resize", "api", "3"), [True, True]),
            (("resize", "api", "1"), [False, False]),
            (("resize", "api", "--reset"), [True, True]),
        ):
            locks(*words)
            found = [has_free_permit("api", 2, key=key) for key in "78"]
            assert free == found, words


def test_index_of_holders_contains_the_oldest_holder_of_each_name_in_use(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexes.HolderIndex, "interval", 0.2)

    def index() -> dict[bytes, float]:
        return dict(raw.zrange(HOLDERS, 0, -1, withscores=True))

    with Semaphore("s", 3) as first:
        time.sleep(0.1)
        with Semaphore("s", 3), Lock("x"):
            eventually(lambda: {b"s", b"x"} == index().keys())
            assert first.fence // 1000 == index()[b"s"]
        eventually(lambda: {b"s"} == index().keys())
        raw.zadd(HOLDERS, {"killed": 1})
        eventually(lambda: {b"s"} == index().keys())
    eventually(lambda: not raw.exists(HOLDERS))
    time.sleep(0.5)  # the process holds nothing at the next write
    with Lock("x"):  # its name was registered less than a minute ago
        eventually(lambda: {b"x"} == index().keys())


@pytest.mark.promise(25)
@pytest.mark.parametrize("key", [None, "7"])
def test_status_lists_a_held_name_although_the_registry_does_not_contain_it(
    raw: redis.Redis, key: str | None
) -> None:
    with Semaphore("old", 2, key=key, timeout=math.inf):
        eventually(lambda: listed("old" if key is None else "old@7"))
        raw.delete(REGISTRY, f"{settings.PREFIX}:{{old}}:keys")
        raw.zadd(HOLDERS, {"old" if key is None else "old@7": raw.time()[0] * 1000 - 86_400_000})
        in_use = by_name(locks("status"))["old"]["IN USE"]
        assert ("1/2" if key is None else "1") == in_use
        words = ["old"] if key is None else ["old", "--key", key]
        assert ": 1 of 2 in use\n" in locks("status", *words)


def test_status_sorted_by_oldest_begins_with_the_name_of_the_oldest_holder(
    raw: redis.Redis,
) -> None:
    now = raw.time()[0] * 1000
    raw.zadd(REGISTRY, {f"recent:{n}": now + 60_000 + n for n in range(150)})
    with Lock("old", timeout=math.inf):
        raw.zadd(HOLDERS, {"old": now})
        text = locks("status", "--sort", "oldest", "--top", "3")
    assert "old" == text.splitlines()[1].split()[0]
    assert "The list is sorted by an index of holders that is at most 60 s old." in text


@both
async def test_status_is_the_same_in_sync_and_async_code(io: Any, raw: redis.Redis) -> None:
    held = Semaphore("held", 2, timeout=math.inf)
    async with io.entered(held):
        status = await io.do(held, "status")
        about = status.in_use, status.holding, status.limit, status.holders[0].ends_in
        assert (1, 1, 2, math.inf, ()) == (*about, status.shares)
        other = await io.do(Lock("held"), "status")
        assert replace(status, at=datetime.min) == replace(other, at=datetime.min)
    act("pause", "api")
    assert (await io.do(Semaphore("api", 2, key="7"), "status")).paused


@both
async def test_error_message_for_a_foreign_value_contains_the_redis_key(
    io: Any, raw: redis.Redis
) -> None:
    for part in ("leases", "never"):
        raw.set(f"{settings.PREFIX}:{{spoiled}}:{part}", "foreign")
    with pytest.raises(ForeignValue, match=r"another program's value.*\{spoiled\}"):
        await io.do(Lock("spoiled"), "status")


def test_status_lists_only_the_20_shares_that_hold_the_most_permits() -> None:
    with ExitStack() as stack:
        for number in range(300):
            stack.enter_context(Semaphore("exports", 999, share=f"tenant {number}"))
        for _ in range(2):
            stack.enter_context(Semaphore("exports", 999, share="heavy one", share_limit=2))
        status = status_of("exports")
        page = locks("status", "exports")
    assert (20, 301) == (len(status.shares), status.share_count)
    heaviest = status.shares[0]
    assert ("heavy one", 2) == (heaviest.name, heaviest.in_use)
    assert "… and 281 more\n" in page


def test_list_of_shares_is_marked_as_incomplete_above_10000_holders(raw: redis.Redis) -> None:
    with Semaphore("exports", 99_999, share="acme"), Semaphore("exports", 99_999, share="bolt"):
        tokens = [f"token-{n}" for n in range(10_000)]
        raw.zadd(f"{settings.PREFIX}:{{exports}}:leases", dict.fromkeys(tokens, "inf"))
        record = "h 5 inf 1 9 - {}"
        raw.hset(f"{settings.PREFIX}:{{exports}}:info", mapping=dict.fromkeys(tokens, record))
        assert not status_of("exports").shares_are_complete
        assert "There may be more shares: only about 10,000" in locks("status", "exports")


@pytest.mark.promise(25)
def test_status_shows_the_permits_and_the_waiters_of_each_share(threads: Any) -> None:
    def hold(share: Any, limit: int = 3) -> Semaphore:
        return Semaphore("exports", 9, share=share, share_limit=limit, blocking_timeout=60)

    def take_and_release() -> None:
        with hold("acme", 1):
            pass

    with hold("acme"), hold("acme"), hold("\N{ZERO WIDTH SPACE}x"), hold(None):
        waiting = threads.submit(take_and_release)
        eventually(lambda: status_of("exports").waiting)
        text = locks("status", "exports")
        (found,) = as_json("status", "exports")["names"]
        with pytest.raises(NotAcquired, match="of the share are in use") as caught:
            Semaphore("exports", 9, share="acme", share_limit=2, blocking_timeout=0.01).__enter__()
    waiting.result(30)
    assert "share" == caught.value.reason
    head, acme, *others = text[text.index("SHARE") :].partition("\n\n")[0].splitlines()
    assert ["SHARE", "IN", "USE", "WAITING"] == head.split()
    assert ["acme", "2/3", "1"] == acme.split()
    assert {("(none)", "1/3", "0"), (r"\u200bx", "1/3", "0")} == {(*one.split(),) for one in others}
    assert "share acme" in text and "\N{ZERO WIDTH SPACE}" not in text
    assert {"share": "acme", "in_use": 2, "waiting": 1, "limit": 3} == found["shares"][0]
    assert [3, 1] == [found["share_count"], found["shares_waiting"]]
    assert ["acme"] == [waiter["share"] for waiter in found["waiters"]]
    assert ["acme", "acme", "\N{ZERO WIDTH SPACE}x", None] == [h["share"] for h in found["holders"]]
    total = as_json("history", "exports")["total"]
    assert (1, 1) == (total["rejected"], total["share_rejected"])
