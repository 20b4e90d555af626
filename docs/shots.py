"""Take the pictures of the documentation: `python docs/shots.py [FOLDER]`.

The script needs Chromium and selenium. It takes half a minute.

The script starts the site of the browser tests, and runs traffic for some seconds. Then it writes
invented history of similar traffic for the hour before. With DJANGO_REDIS_SYNC_SHOTS=FOLDER, it
also takes pictures for a phone and in dark mode, and saves them in FOLDER. To halve the size of the
pictures, reduce them to 160 colors.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 1280
#: Seconds of traffic, and minutes of history to write.
SECONDS, MINUTES = 15, 57
#: (name, limit, number of callers, seconds of a hold, label)
TRAFFIC = [
    ("exports", 3, 7, 1.6, "reports.views.export"),
    ("api:search", 20, 12, 0.3, "api.views.search"),
    ("thumbnails", 8, 6, 0.5, "media.tasks.thumbnail"),
    ("invoice:4711", 1, 1, 2.5, "billing.tasks.send_invoice"),
]


@contextlib.contextmanager
def traffic() -> Iterator[None]:
    """Run callers that acquire and release, and one job that holds its lock."""
    from django_redis_sync import Lease, Lock, Semaphore
    from django_redis_sync.operators import actions

    over = threading.Event()

    def work(name: str, limit: int, seconds: float, label: str) -> None:
        while not over.is_set():
            taken = Semaphore(name, limit, label=label).acquire(blocking_timeout=seconds)
            if isinstance(taken, Lease):
                over.wait(random.uniform(0.5, 1.5) * seconds)
                taken.release()
            over.wait(random.uniform(0, seconds / 4))

    crowd = [
        threading.Thread(target=work, args=(name, limit, seconds, label))
        for name, limit, people, seconds, label in TRAFFIC
        for _ in range(people)
    ]
    with Lock("nightly-report", label="reports.tasks.nightly"), Semaphore("uploads", 4):
        actions.Change("uploads", None).pause()
        for thread in crowd:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in crowd:
                thread.join()


def remember() -> None:
    """Write invented history for the MINUTES before the traffic. Its counts go up and down around
    the counts of the traffic."""
    from django_redis_sync import conf
    from django_redis_sync.engine.drivers import command
    from django_redis_sync.protocol.keys import keys_of

    now = int(command("default", "TIME")[0]) // 60
    for name, limit, *_ in TRAFFIC:
        stats = keys_of(conf.current().prefix("default"), name, None).stats
        seen: dict[str, int] = {}
        for field, value in command("default", "HGETALL", stats).items():
            what = field.partition(":")[2]
            seen[what] = max(int(value), seen.get(what, 0))
        for ago in range(1, MINUTES):
            share = 0.75 + 0.5 * math.sin(ago / 9) * random.uniform(0.6, 1)
            for what, n in seen.items():
                then = limit if what == "p" and "w" in seen else at_another_time(what, n, share)
                command("default", "HSET", stats, f"{now - ago}:{what}", then)


def at_another_time(what: str, n: int, share: float) -> int:
    """Return a value of the counter `what` for one minute of invented history.

    `n`: the value of the counter after SECONDS of real traffic. `share`: the traffic of the minute,
    divided by the real traffic. The counters w and r contain a count and a sum of ms: see
    `count.lua`."""
    from django_redis_sync.protocol.scripts import CONSTANTS

    if what == "p":
        return math.ceil(n * share)
    minute = 60 / SECONDS * (max(0.0, share - 0.8) if what == "t" else share)
    pairs, ms = divmod(n, CONSTANTS["PAIR"]) if what in "wr" else (0, n)
    return round(pairs * minute) * CONSTANTS["PAIR"] + round(ms * minute)


def main(folder: Path) -> None:
    from devtools.servers import RedisServer
    from tests.browser import conftest

    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(RedisServer()).url
        os.environ["DJANGO_REDIS_SYNC_TEST_URL"] = url
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
        import django

        django.setup()
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        site = stack.enter_context(conftest.running_site(url, scratch))
        browser = next(made := conftest.chromium.__wrapped__())
        stack.callback(next, made, None)  # at the end, continue the fixture: it quits the browser
        visitor = conftest.Visitor(browser, site)
        visitor.log_in("manu")
        stack.enter_context(traffic())
        time.sleep(SECONDS)
        remember()
        for path, name, height in (
            ("", "admin-list", 580),
            ("exports/change/", "admin-name", 1640),
        ):
            visitor.open(path)
            visitor.show(WIDTH, height)
            time.sleep(3)
            browser.save_screenshot(str(folder / f"{name}.png"))
            if more := os.environ.get("DJANGO_REDIS_SYNC_SHOTS"):
                Path(more).mkdir(parents=True, exist_ok=True)
                shoot(visitor, str(Path(more, name)))


def shoot(visitor: Any, start: str) -> None:
    """Take pictures of the whole page, on a desktop and a phone, in light and dark mode."""
    for width, device in ((WIDTH, "desktop"), (390, "phone")):
        for scheme in ("light", "dark"):
            visitor.show(width, 900, scheme)
            height = visitor.run("return document.documentElement.scrollHeight")
            visitor.show(width, max(700, min(height, 4000)), scheme)
            time.sleep(0.3)  # transitions change the colors of links
            visitor.browser.save_screenshot(f"{start}-{device}-{scheme}.png")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images")
