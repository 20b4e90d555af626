"""The cost of operators' pages and commands depends on what they show, not on all names."""

from __future__ import annotations

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
from tests.behaviour.both import eventually
from tests.behaviour.watching import sent
from tests.conftest import clean
from tests.support.operators import as_json, locks

pytestmark = pytest.mark.django_db

LIST = "/admin/django_redis_sync/name/"
#: Maximum number of commands, whatever the number of names: for the list, for a page that refreshes
#: itself, and for a name. Reads of the registry in chunks are not counted.
LIST_COST, LIVE_COST, NAME_COST = 300, 60, 60
NAMES, KEYS, POLICIES, HELD = 2_000, 50_000, 40, 203
BUSIEST, REJECTED, CHUNK = "15000", 5, 1000
#: Reads of a registry besides those in chunks.
SINGLE_READS = 4
REGISTRY, API = f"{settings.PREFIX}:names", f"{settings.PREFIX}:{{api}}:keys"


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
    now = raw.time()[0] * 1000
    fill = raw.pipeline(transaction=False)
    for registry, name, count in ((REGISTRY, "invoice:", NAMES), (API, "", KEYS)):
        for start in range(0, count, 1000):
            ranks = range(start, start + 1000)
            fill.zadd(registry, {f"{name}{n}": now - 60_000 - n for n in ranks})
    for n in range(POLICIES):
        keys = {f"key-{m}": now - m for m in range(100)}
        fill.zadd(f"{settings.PREFIX}:{{policy-{n}}}:keys", keys)
        fill.zadd(REGISTRY, {f"policy-{n}@": now - n})
    fill.zadd(REGISTRY, {"api@": now})
    # The index of holders, as processes write it within a minute.
    fill.zadd(f"{settings.PREFIX}:holders", {f"api@{n}": now for n in range(HELD)})
    fill.execute()
    with ExitStack() as stack:
        for key in [*map(str, range(HELD - 3)), *[BUSIEST] * 3]:
            stack.enter_context(Semaphore("api", 3, key=key, timeout=600))
        for _ in range(REJECTED):
            assert Semaphore("api", 3, key=BUSIEST).acquire(blocking=False) is None
        eventually(
            lambda: (
                f" {HELD} in use" in (text := locks("status", "api", "--sort", "use"))
                and "rejected" in text
            )
        )
        raw.zadd(API, {BUSIEST: now - 3_600_000})
        yield


@pytest.fixture
def admin() -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


PAGES = {"": LIST_COST, "api/change/": NAME_COST, "api@7/change/": NAME_COST}
PAGES |= dict.fromkeys(
    [
        "live/", "live/?o=name", "live/?o=-name&p=20", "live/?o=use", "live/?o=rejected",
        "live/?o=recent&p=36", "live/?q=999", "api/live/", "api/live/?o=name&p=3",
        "api/live/?o=-waiting", "api/live/?q=777", "api@7/live/", "invoice:77/live/",
    ],
    LIVE_COST,
)  # fmt: skip
COMMANDS = [
    "status", "status --sort use --top 20", "status --sort rejected", "status --sort name",
    "status --sort oldest", "status api", "status api --sort waiting", "status api --key 7",
    "status api@7", "status --format json", "doctor",
]  # fmt: skip


def cost_of(look: Callable[[], object]) -> int:
    """Return how many commands a call of `look` sends, without the chunks of a registry."""
    look()  # the first call may load scripts and settings
    with sent() as commands:
        look()
    assert commands["keys"] == commands["scan"] == 0
    return sum(commands.by_name.values()) - max(0, commands["zrevrange"] - SINGLE_READS)


@pytest.mark.parametrize(("page", "bound"), PAGES.items())
def test_commands_of_a_page_do_not_grow_with_the_number_of_names(
    admin: Client, page: str, bound: int
) -> None:
    def look() -> None:
        assert admin.get(LIST + page).status_code == 200

    assert cost_of(look) <= bound


@pytest.mark.parametrize("words", COMMANDS)
def test_commands_of_locks_do_not_grow_with_the_number_of_names(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.exit", lambda code: None)  # of the doctor, if this machine is slow
    bound = LIST_COST / 2 if words == "doctor" else LIST_COST
    assert cost_of(lambda: locks(*words.split())) <= bound


def test_commands_of_metrics_do_not_grow_with_the_number_of_names() -> None:
    metrics = pytest.importorskip("django_redis_sync.metrics")
    assert cost_of(lambda: list(metrics.SyncCollector(names=["*"]).collect())) <= LIST_COST


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
    assert NAMES + POLICIES + 1 == as_json("status", "--sort", "name")["found"]
    assert KEYS == as_json("status", "api", "--sort", "name", "--top", "1")["found"]
    reads = [
        words for words in server_commands() if words[0][0] == "Z" and words[1] in (REGISTRY, API)
    ]
    walks = [words for words in reads if words[0] == "ZREVRANGE"]
    parts = [int(stop) - int(start) + 1 for _, _, start, stop, *_ in walks]
    assert CHUNK == max(parts)
    assert NAMES + KEYS <= sum(parts)
    others = {" ".join([words[0], *words[4:]]) for words in reads if words[0] != "ZREVRANGE"}
    assert {f"ZRANGE BYSCORE REV LIMIT 0 {CHUNK}"} == {one for one in others if "RANGE" in one}
    assert not [one for one in others if "SCAN" in one]


def test_status_lists_all_names_in_spite_of_many_keys() -> None:
    text = locks("status", "--sort", "name", "--top", "60")
    assert f"60 of {NAMES + POLICIES + 1} are shown" in text
    assert re.search(rf"^api +{KEYS} +{HELD} +0 ", text, re.MULTILINE)
    found = as_json("status", "api")
    assert KEYS == found["found"]
    assert [{"name": "api", "keys": KEYS, "read": 100}] == found["policies"]


def test_names_with_numbers_are_in_natural_order(admin: Client) -> None:
    for page, before, after in (
        ("live/?o=name", "invoice:2<", "invoice:10<"),
        ("live/?o=-name", "policy-39<", "policy-38<"),
        ("api/live/?o=name", "api@2<", "api@10<"),
    ):
        text = admin.get(LIST + page).content.decode()
        assert 0 < text.index(before) < text.index(after)


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
    pytest.importorskip("prometheus_client")
    from tests.test_metrics import scrape

    found = scrape(names=["api"])
    assert REJECTED == found['redis_sync_events_total{event="rejected",name="api"}']
    assert HELD == found['redis_sync_in_use{name="api"}']
