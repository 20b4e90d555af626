"""The cost of operators' pages and commands depends on what they show, not on all names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from django_redis_sync import Semaphore
from django_redis_sync.engine.names import holders_key, names_key, policy_key
from django_redis_sync.operators import doctor
from django_redis_sync.operators.listing import natural
from django_redis_sync.operators.names import CHUNK, Recent
from django_redis_sync.operators.statistics import statistics_of
from tests.behaviour.both import eventually
from tests.behaviour.watching import sent
from tests.conftest import clean
from tests.support.operators import locks

pytestmark = pytest.mark.django_db

LIST = "/admin/django_redis_sync/name/"
#: Maximum number of commands, whatever the number of names: for the list, for a page that refreshes
#: itself, and for a name. Reads of the registry in chunks are not counted.
LIST_COST, LIVE_COST, NAME_COST = 300, 60, 60
NAMES, KEYS, POLICIES, HELD = 2_000, 50_000, 40, 203
BUSIEST, REJECTED = "15000", 5
#: Reads of a registry besides those in chunks.
SINGLE_READS = 4


@pytest.fixture(scope="module")
def raw(redis_url: str) -> Iterator[redis.Redis]:
    """The `raw` fixture, once for the whole module: the tests change nothing."""
    clean(redis_url)
    with redis.Redis.from_url(redis_url) as client:
        yield client
    clean(redis_url)


@pytest.fixture(scope="module", autouse=True)
def large(raw: redis.Redis) -> Iterator[None]:
    """A large site. Its registry is written directly, and HELD permits are really in use. The
    busiest key is not among the recent ones, so only the statistics contain it."""
    write(raw)
    with ExitStack() as stack:
        for n in range(HELD - 3):
            stack.enter_context(Semaphore("api", 3, key=str(n), timeout=600))
        for _ in range(3):
            stack.enter_context(Semaphore("api", 3, key=BUSIEST, timeout=600))
        for _ in range(REJECTED):
            assert Semaphore("api", 3, key=BUSIEST).acquire(blocking=False) is None
        eventually(lambda: (s := statistics_of(["api"])[0]).rejected and s.in_use >= HELD)
        now = raw.time()[0] * 1000
        raw.zadd(policy_key(settings.PREFIX, "api"), {BUSIEST: now - 3_600_000})
        yield


def write(raw: redis.Redis) -> None:
    """Write the registry."""
    now = raw.time()[0] * 1000
    fill = raw.pipeline(transaction=False)
    for start in range(0, NAMES, 1000):
        some = {f"invoice:{n}": now - 60_000 - n for n in range(start, start + 1000)}
        fill.zadd(names_key(settings.PREFIX), some)
    for start in range(0, KEYS, 5000):
        some = {str(n): now - 60_000 - n for n in range(start, start + 5000)}
        fill.zadd(policy_key(settings.PREFIX, "api"), some)
    for n in range(POLICIES):
        some = {f"key-{m}": now - m for m in range(100)}
        fill.zadd(policy_key(settings.PREFIX, f"policy-{n}"), some)
        fill.zadd(names_key(settings.PREFIX), {f"policy-{n}@": now - n})
    fill.zadd(names_key(settings.PREFIX), {"api@": now})
    fill.execute()


@pytest.fixture
def admin() -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


PAGES = [
    "",
    "live/",
    "live/?o=name",
    "live/?o=-name&p=20",
    "live/?o=use",
    "live/?o=rejected",
    "live/?o=recent&p=36",
    "live/?q=999",
    "api/change/",
    "api/live/",
    "api/live/?o=name&p=3",
    "api/live/?o=-waiting",
    "api/live/?q=777",
    "api@7/change/",
    "api@7/live/",
    "invoice:77/live/",
]
COMMANDS = [
    ("status",),
    ("status", "--sort", "use", "--top", "20"),
    ("status", "--sort", "rejected"),
    ("status", "--sort", "name"),
    ("status", "api"),
    ("status", "api", "--sort", "waiting"),
    ("status", "api", "--key", "7"),
    ("status", "api@7"),
    ("status", "--format", "json"),
    ("doctor",),
]


def cost_of(raw: redis.Redis, look: Callable[[], object]) -> int:
    """Return how many commands a call of `look` sends, without the chunks of a registry."""
    look()  # the first call may load scripts and settings
    with sent() as commands:
        look()
    assert commands["keys"] == commands["scan"] == 0
    cost = sum(commands.by_name.values())
    return cost - max(0, commands["zrevrange"] - SINGLE_READS)


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page_do_not_grow_with_the_number_of_names(
    raw: redis.Redis, admin: Client, page: str
) -> None:
    def look() -> None:
        assert admin.get(LIST + page).status_code == 200

    is_list = not page.startswith(("api", "invoice"))
    bound = LIVE_COST if "live/" in page else LIST_COST if is_list else NAME_COST
    assert cost_of(raw, look) <= bound


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_of_locks_do_not_grow_with_the_number_of_names(
    raw: redis.Redis, words: tuple[str, ...]
) -> None:
    def look() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "sys.exit", lambda code: None
            )  # the doctor exits with 1: this server has no AOF
            locks(*words)

    assert cost_of(raw, look) <= LIST_COST


def test_commands_of_metrics_and_doctor_do_not_grow_with_names(raw: redis.Redis) -> None:
    now = raw.time()[0] * 1000
    held = {f"api@{n}": now for n in range(HELD)}  # as processes write it within a minute
    raw.zadd(holders_key(settings.PREFIX), held)
    metrics = pytest.importorskip("django_redis_sync.metrics")
    assert cost_of(raw, lambda: list(metrics.SyncCollector(names=["*"]).collect())) <= LIST_COST
    assert cost_of(raw, doctor.examine) <= LIST_COST / 2


@pytest.fixture
def server_commands(raw: redis.Redis) -> Iterator[Callable[[], list[list[str]]]]:
    """Return the commands that the server has run since, from a slow log of all commands."""
    before = {**raw.config_get("slowlog*")}
    raw.config_set("slowlog-max-len", 100_000)
    raw.config_set("slowlog-log-slower-than", 0)
    raw.slowlog_reset()
    yield lambda: [one["command"].decode().split() for one in raw.slowlog_get(100_000)]
    for name, value in before.items():
        raw.config_set(name, value)
    raw.slowlog_reset()


def test_registry_is_read_completely_in_bounded_chunks(server_commands: Any) -> None:
    assert NAMES + POLICIES + 1 == len(set(Recent().every()))
    assert KEYS == len(set(Recent("api").every()))
    registries = {names_key(settings.PREFIX), policy_key(settings.PREFIX, "api")}
    reads = [words for words in server_commands() if words[0][0] == "Z" and words[1] in registries]
    walks = [words for words in reads if words[0] == "ZREVRANGE"]
    parts = [int(stop) - int(start) + 1 for _, _, start, stop, *_ in walks]
    assert CHUNK == max(parts)
    assert NAMES + KEYS <= sum(parts)
    others = {" ".join([words[0], *words[4:]]) for words in reads if words[0] != "ZREVRANGE"}
    assert {f"ZRANGE BYSCORE REV LIMIT 0 {CHUNK}"} == {one for one in others if "RANGE" in one}
    assert not [one for one in others if "SCAN" in one]


def test_status_lists_all_names_in_spite_of_many_keys(raw: redis.Redis) -> None:
    text = locks("status", "--sort", "name", "--top", "60")
    assert f"60 of {NAMES + POLICIES + 1} are shown" in text
    eventually(lambda: statistics_of(["api"])[0].in_use == HELD)
    text = locks("status", "--sort", "name", "--top", "60")
    assert re.search(rf"^api +{KEYS} +{HELD} +0 ", text, re.MULTILINE)
    found = json.loads(locks("status", "api", "--format", "json"))
    assert KEYS == found["found"]
    assert [{"name": "api", "keys": KEYS, "read": 100}] == found["policies"]


def test_names_with_numbers_are_in_natural_order(admin: Client) -> None:
    assert ["job 2", "job 10", "Job 10b"] == sorted(["Job 10b", "job 10", "job 2"], key=natural)
    text = admin.get(LIST + "live/?o=name").content.decode()
    assert text.index("invoice:2<") < text.index("invoice:10<")
    text = admin.get(LIST + "api/live/?o=name").content.decode()
    assert text.index("api@2<") < text.index("api@10<")


# Statistics of all keys together


def test_statistics_find_the_busiest_and_most_rejected_of_all_keys(admin: Client) -> None:
    for order in ("use", "rejected"):
        lines = locks("status", "api", "--sort", order, "--top", "3").splitlines()
        assert f"{KEYS:d} keys, {HELD} in use, 0 waiting, limit 3 each" in lines[0]
        rows = [line for line in lines if line.startswith("api@")]
        assert rows[0].startswith(f"api@{BUSIEST} ")
        assert any(f"rejected {REJECTED}" in line for line in lines)
        assert any("The counts are at most 10 s old." in line for line in lines)
        first = admin.get(f"{LIST}api/live/?o={order}").content.decode()
        keys = re.findall(r'id="row-(api@[^"]+|api_40[^"]+)"', first)
        assert BUSIEST in keys[0]
    page = admin.get(LIST + "api/change/").content.decode()
    assert f"{HELD} in use, 0 waiting in all keys" in page and "sync-area" in page
    assert "≥" not in next(line for line in locks("status").splitlines() if "api " in line)


def test_metrics_of_a_policy_add_up_its_keys() -> None:
    metrics = pytest.importorskip("django_redis_sync.metrics")
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    metrics.register(registry=registry, names=["api"])
    text = generate_latest(registry).decode()
    assert f'redis_sync_events_total{{event="rejected",name="api"}} {REJECTED}.0' in text
    assert f'redis_sync_in_use{{name="api"}} {HELD}.0' in text
