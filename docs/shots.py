"""Makes the pictures of these pages: `python docs/shots.py [FOLDER]`, with Chromium and selenium.

A site of its own under made-up traffic, seen with the machinery of the browser tests. Reduced to
128 colours (any tool will do) a picture is 40 kB rather than 100.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 1280
#: A name, its limit, how many ask for it, seconds that each holds it, and what they are.
TRAFFIC = [
    ("exports", 3, 7, 1.6, "reports.views.export"),
    ("api:search", 20, 12, 0.3, "api.views.search"),
    ("thumbnails", 8, 6, 0.5, "media.tasks.thumbnail"),
    ("invoice:4711", 1, 1, 2.5, "billing.tasks.send_invoice"),
]


@contextlib.contextmanager
def traffic() -> Iterator[None]:
    """People who come and go; one job that holds on."""
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
        actions.pause("uploads")
        for thread in crowd:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in crowd:
                thread.join()


def main(folder: Path) -> None:
    from devtools.servers import RedisServer
    from tests.browser import conftest

    with contextlib.ExitStack() as stack:
        url = stack.enter_context(RedisServer()).url
        os.environ["DJANGO_REDIS_SYNC_TEST_URL"] = url
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
        import django

        django.setup()
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        site = stack.enter_context(conftest.running_site(url, scratch))
        browser = next(made := conftest.chromium.__wrapped__())
        stack.callback(next, made, None)  # the end of it quits the browser
        visitor = conftest.Visitor(browser, site)
        visitor.log_in("manu")
        stack.enter_context(traffic())
        time.sleep(float(os.environ.get("SECONDS_OF_TRAFFIC", "200")))  # the charts are by minute
        for path, name, height in (
            ("", "admin-list", 580),
            ("exports/change/", "admin-name", 1640),
        ):
            visitor.open(path)
            visitor._show(WIDTH, height, "light")
            time.sleep(3)
            browser.save_screenshot(str(folder / f"{name}.png"))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images")
