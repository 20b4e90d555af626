"""Measure the cost of the admin pages and of `manage.py locks` if Redis has many names.

    python -m benchmarks.operators

The benchmark starts a Redis server, and creates 50,000 names, 50,000 keys of a policy, and 2,000
holders. For each page or command, it prints the number of scripts, the CPU time of Redis, the mean
time of the slowest Redis command, and the response time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from io import StringIO
from typing import Any

import django
import redis
from django.conf import settings
from django.core.management import call_command
from django.test import Client

from devtools.servers import RedisServer

NAMES, KEYS, HOLDERS = 50_000, 50_000, 2000
LIST = "/admin/django_redis_sync/name/"
PAGES = (
    ("list of names", ""),
    ("list of names, live refresh", "live/"),
    ("list by name", "live/?o=name"),
    ("list by rejections", "live/?o=refused"),
    ("a search", "live/?q=4711"),
    ("a policy", "api/change/"),
    ("a policy, live refresh", "api/live/"),
    ("one key", "api@7/change/"),
    ("one key, live refresh", "api@7/live/"),
    ("list of names as JSON", "data/"),
)
COMMANDS = (
    ("status",),
    ("status", "--sort", "refused", "--top", "20"),
    ("status", "--sort", "name"),
    ("status", "api"),
    ("status", "api", "--key", "7"),
)


def prepare(client: redis.Redis, stack: ExitStack) -> None:
    from django_redis_sync import Semaphore
    from django_redis_sync.conf import current
    from django_redis_sync.engine.names import names_key, policy_key

    prefix, now = current().prefix("default"), client.time()[0] * 1000
    for start in range(0, NAMES, 5000):
        some = range(start, start + 5000)
        names = {f"invoice:{n}": now - 60_000 - n for n in some}
        client.zadd(names_key(prefix), names)
        client.zadd(policy_key(prefix, "api"), {str(n): now - 60_000 - n for n in some})
    client.zadd(names_key(prefix), {"api@": now})
    for n in range(HOLDERS):
        asked = Semaphore("api", 3, key=str(n), timeout=600)
        stack.enter_context(asked)
        if n % 10 == 0:
            Semaphore("api", 1, key=str(n)).acquire(blocking=False)


@contextmanager
def measured(client: redis.Redis, name: str) -> Iterator[None]:
    client.config_resetstat()
    start = time.perf_counter()
    yield
    spent = time.perf_counter() - start
    stats: dict[str, Any] = client.info("commandstats")
    # Leave out HGET and HMGET. Scripts call them, so the time of a script includes their time.
    own = {n: s for n, s in stats.items() if n not in ("cmdstat_hget", "cmdstat_hmget")}
    scripts = sum(s["calls"] for n, s in own.items() if n in ("cmdstat_evalsha", "cmdstat_eval"))
    cpu = sum(s["usec"] for s in own.values()) / 1000
    slowest = max(s["usec_per_call"] for n, s in own.items() if s["calls"]) / 1000
    row = f"{name:44} {scripts:5} scripts {cpu:7.1f} ms CPU"
    print(f"{row}, slowest command {slowest:5.2f} ms, answer after {spent * 1000:6.0f} ms")


def look(client: redis.Redis, name: str, at: Callable[[], Any]) -> None:
    at()  # fill caches first
    with measured(client, name):
        at()


def main() -> None:
    with RedisServer() as server, ExitStack() as stack:
        os.environ["DJANGO_REDIS_SYNC_TEST_URL"] = server.url
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
        django.setup()
        settings.CACHES["default"]["LOCATION"] = server.url
        settings.DATABASES["default"]["NAME"] = ":memory:"
        settings.ALLOWED_HOSTS = ["testserver"]
        call_command("migrate", verbosity=0)
        from django.contrib.auth.models import User

        from django_redis_sync import metrics
        from django_redis_sync.operators import doctor

        client = redis.Redis.from_url(server.url)
        prepare(client, stack)
        admin = Client()
        admin.force_login(User.objects.create_superuser("root"))
        for name, page in PAGES:
            look(client, f"{name} ({page or '/'})", lambda page=page: admin.get(LIST + page))
        for words in COMMANDS:
            at = lambda words=words: call_command("locks", *words, stdout=StringIO())  # noqa: E731
            look(client, f"locks {' '.join(words)}", at)
        look(client, "locks doctor", doctor.examine)
        collector = metrics.SyncCollector(names=["*"])
        look(client, "metrics, all names", lambda: list(collector.collect()))


if __name__ == "__main__":
    main()
