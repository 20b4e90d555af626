"""The cost of `manage.py locks` and of the admin's pages depends on what they show, not on the
number of all names."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis
from django.conf import settings
from django.test import Client

from django_redis_sync import Semaphore
from django_redis_sync.console import pages
from django_redis_sync.operators import reads
from tests.behaviour.both import eventually
from tests.behaviour.watching import sent
from tests.conftest import clean
from tests.support.operators import as_json, locks
from tests.support.pages import get
from tests.support.screens import by_name, rows

#: Max number of Redis commands that `locks` may send, and max number for `locks doctor`. A site may
#: have any number of names. Commands that read a registry in chunks don't count, nor those by which
#: the doctor reads each name once.
COST, DOCTOR_COST = 300, 150
NAMES, KEYS, POLICIES, HELD = 2_000, 50_000, 40, 203
ALL = NAMES + POLICIES + 2
BUSIEST, REJECTED, CHUNK, TROUBLE = "15000", 5, 1000, "zz-last-by-name"
#: Max ZREVRANGE commands to count toward COST. Further ones are reads of a registry in chunks.
SINGLE_READS = 4
REGISTRY, API = f"{settings.PREFIX}:names", f"{settings.PREFIX}:{{api}}:keys"


@pytest.fixture(scope="module")
def raw(redis_url: str) -> Iterator[redis.Redis]:
    """The fixture `raw` for the whole module, because its tests share one large site."""
    clean(redis_url)
    with redis.Redis.from_url(redis_url) as client:
        yield client
    clean(redis_url)


@pytest.fixture(scope="module", autouse=True)
def large(raw: redis.Redis) -> Iterator[None]:
    """Make a large site: write names and keys to the registries, and hold some permits.

    BUSIEST: the key with the most permits in use and the most rejections. It was last used an hour
    ago, so only statistics can find it. TROUBLE: a name with a waiter and a rejection."""
    now = raw.time()[0] * 1000
    fill = raw.pipeline(transaction=False)
    for registry, name, count in ((REGISTRY, "invoice:", NAMES), (API, "", KEYS)):
        for start in range(0, count, 1000):
            ranks = range(start, start + 1000)
            fill.zadd(registry, {f"{name}{n}": now - 60_000 - n for n in ranks})
    for n in range(POLICIES):
        keys = {str(m): now - 60_000 - m for m in range(500)}
        fill.zadd(f"{settings.PREFIX}:{{policy-{n}}}:keys", keys)
        fill.zadd(REGISTRY, {f"policy-{n}@": now - n})
    fill.zadd(REGISTRY, {"api@": now})
    # Write the index of holders now. Processes would write it within a minute.
    fill.zadd(f"{settings.PREFIX}:holders", {f"api@{n}": now for n in range(HELD)})
    fill.execute()

    def is_counted() -> bool:
        text = locks("status", "api", "--sort", "use")
        return f" {HELD} in use" in text and "timed out" in text

    def wait() -> None:
        with Semaphore(TROUBLE, 1, blocking_timeout=600):
            pass

    waiter = threading.Thread(target=wait)
    with ExitStack() as stack:
        stack.callback(waiter.join)
        for key in [*map(str, range(HELD - 3)), *[BUSIEST] * 3]:
            stack.enter_context(Semaphore("api", 3, key=key, timeout=600))
        for key in range(30):
            stack.enter_context(Semaphore("policy-7", 2, key=str(key)))
        stack.enter_context(Semaphore(TROUBLE, 1))
        assert Semaphore(TROUBLE, 1).acquire(blocking_timeout=0.01) is None
        for _ in range(REJECTED):
            assert Semaphore("api", 3, key=BUSIEST).acquire(blocking_timeout=0.01) is None
        waiter.start()
        eventually(is_counted)
        raw.zadd(API, {BUSIEST: now - 3_600_000})
        yield


@pytest.mark.parametrize(
    "words",
    [
        "status", "status --sort use --top 20", "status --sort rejected", "status --sort name",
        "status --sort oldest", "status api", "status api --sort waiting", "status api --key 7",
        "status api@7", "status --format json", "doctor",
    ],
)  # fmt: skip
def test_locks_command_sends_a_bounded_number_of_redis_commands_on_a_large_site(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a slow machine, `doctor` would exit with an error.
    monkeypatch.setattr("sys.exit", lambda code: None)
    monkeypatch.setattr("django_redis_sync.management.commands.locks.LOOK_SECONDS", 0.5)
    locks(*words.split())  # the first call may load scripts and settings
    with sent() as commands:
        locks(*words.split())
    assert commands["keys"] == commands["scan"] == 0
    cost = sum(commands.by_name.values()) - max(0, commands["zrevrange"] - SINGLE_READS)
    if words == "doctor":
        assert commands["evalsha"] <= NAMES + KEYS + 500 * POLICIES + 200
        cost -= commands["evalsha"]
    assert cost <= (DOCTOR_COST if words == "doctor" else COST)


def test_status_reads_all_names_in_chunks_of_a_limited_size(raw: redis.Redis) -> None:
    before = raw.config_get("slowlog*")
    raw.config_set("slowlog-max-len", 100_000)
    raw.config_set("slowlog-log-slower-than", 0)  # all commands
    raw.slowlog_reset()
    try:
        assert ALL == as_json("status", "--sort", "name")["found"]
        assert KEYS == as_json("status", "api", "--sort", "name", "--top", "1")["found"]
        commands = [
            one["command"].decode(errors="replace").split() for one in raw.slowlog_get(100_000)
        ]
    finally:
        for name, value in before.items():
            raw.config_set(name, value)
        raw.slowlog_reset()
    found = [w for w in commands if w[0][0] == "Z" and w[1] in (REGISTRY, API)]
    walks = [words for words in found if words[0] == "ZREVRANGE"]
    parts = [int(stop) - int(start) + 1 for _, _, start, stop, *_ in walks]
    assert CHUNK == max(parts)
    assert NAMES + KEYS <= sum(parts)
    others = {" ".join([words[0], *words[4:]]) for words in found if words[0] != "ZREVRANGE"}
    assert {f"ZRANGE BYSCORE REV LIMIT 0 {CHUNK}"} == {
        one for one in others if "RANGE" in one and "REM" not in one
    }
    assert not [one for one in others if "SCAN" in one]


@pytest.mark.promise(25)
def test_status_sorts_names_in_natural_order_even_if_a_policy_has_many_keys() -> None:
    text = locks("status", "--sort", "name", "--top", "60")
    assert f"60 of {ALL} entries are shown" in text
    assert ["api", *(f"invoice:{n}" for n in range(59))] == [*by_name(text)][:60]
    assert (str(KEYS), str(HELD), "0") == (*map(rows(text)[0].get, ("KEYS", "IN USE", "WAITING")),)
    found = as_json("status", "api")
    assert KEYS == found["found"]
    assert [{"name": "api", "keys": KEYS, "read": 100}] == found["policies"]


@pytest.mark.parametrize("order", ["use", "rejected"])
def test_status_finds_the_busiest_and_the_most_rejected_key_among_many_keys(order: str) -> None:
    lines = locks("status", "api", "--sort", order, "--top", "3").splitlines()
    assert f"{KEYS:d} keys, {HELD} in use, 0 waiting, limit 3 for each key" in lines[0]
    assert f"api@{BUSIEST}" == next(line for line in lines if line.startswith("api@")).split()[0]
    assert any(f"timed out {REJECTED}" in line for line in lines)
    assert any("The counts are at most 10 s old." in line for line in lines)


# The pages of the admin


@pytest.mark.django_db
def test_admin_list_begins_with_the_names_that_have_problems(
    raw: redis.Redis, admin_client: Client
) -> None:
    def problem_first() -> bool:
        # All other names were used later.
        raw.zadd(REGISTRY, {TROUBLE: (raw.time()[0] - 3600) * 1000})
        page = get(admin_client)
        return [f"row-{TROUBLE}"] == [*page.cells][:1] and f"{ALL} names" in page.text

    eventually(problem_first)


@pytest.mark.django_db
def test_page_links_of_the_admin_list_keep_the_search_text_and_the_sort_order(
    admin_client: Client,
) -> None:
    page = get(admin_client, "?q=invoice:1&o=-name")
    assert "Page 1 of 45" in page.text and "page-previous" not in page.parts
    assert "?q=invoice%3A1&o=-name&p=2" in page.links and 25 == len(page.cells)
    page = get(admin_client, "?q=invoice:1&o=-name&p=45")
    assert "Page 45 of 45" in page.text and "page-next" not in page.parts
    assert "?q=invoice%3A1&o=-name&p=44" in page.links
    assert f'data-url="{"/admin/django_redis_sync/name/live/"}?q=invoice%3A1&amp;' in page.html
    keys = get(admin_client, "policy-9/change/?o=name&p=2&history=all")
    assert [f"row-policy-9_40{n}" for n in range(20, 40)] == [*keys.cells]
    assert {"?history=all&o=name&p=3", "?history=all&o=-name"} <= {*keys.links}
    text = get(admin_client, "?o=use").text
    assert "The order compares 60 names: the busiest, then the most recently used." in text


@pytest.mark.django_db
def test_admin_page_of_a_policy_shows_the_same_keys_each_time_it_is_loaded(
    admin_client: Client, raw: redis.Redis
) -> None:
    def used() -> Any:
        return raw.zrange(f"{settings.PREFIX}:{{policy-7}}:keys", 0, -1, withscores=True)

    page, whole = "policy-7/change/", "30 in use, 0 waiting in all keys"
    eventually(lambda: whole in get(admin_client, page).text)
    loads, before = list[list[str]](), None
    # Once a minute, this process writes that it uses the keys, which may change their order.
    while before != (before := used()):
        loads = [[*get(admin_client, page).cells] for _ in range(5)]
    assert loads[:1] * 5 == loads


@pytest.fixture
def old_policies(raw: redis.Redis) -> Iterator[None]:
    """Make the policies the least recently used names. Otherwise, a page of recent names would list
    mainly policies, and a page sends more commands to read a policy than to read another name."""
    names = [f"policy-{n}@" for n in range(POLICIES)]
    before = dict(zip(names, raw.zmscore(REGISTRY, names), strict=True))
    raw.zadd(REGISTRY, {name: score - 3_600_000 for name, score in before.items()})
    yield
    raw.zadd(REGISTRY, before)


@pytest.mark.django_db
@pytest.mark.usefixtures("old_policies")
@pytest.mark.parametrize(
    ("page", "limit"),
    [
        *((page, 300) for page in ("", "?o=use", "?o=oldest", "?o=name", "?o=recent", "?q=99")),
        *((f"live/{q}", 60) for q in ("", "?p=9", "?o=use", "?o=oldest", "?o=rejected", "?q=99")),
        *((f"policy-7/{page}", 60) for page in ("change/", "live/", "live/?o=-waiting")),
        *((f"{TROUBLE}/{page}", 60) for page in ("change/", "change/?history=all", "live/")),
        ("policy-7_407/live/", 60),
    ],
)
def test_admin_page_sends_a_bounded_number_of_redis_commands(
    admin_client: Client, page: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "HEALTH_LIFETIME", 0)  # don't cache the result of the doctor
    monkeypatch.setattr(reads, "_replies", {})
    monkeypatch.setattr(reads, "_LIFE", 3600)  # so that no reply expires between the two loads
    get(admin_client, page)  # fill the caches
    with sent() as commands:
        get(admin_client, page)
    assert sum(commands.by_name.values()) <= limit, commands.by_name
    assert (limit == 300) == (commands["info"] > 0)
