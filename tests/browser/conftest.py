"""Fixtures with a real Chromium and a real server. If Chromium is missing, the tests are skipped.
With DJANGO_REDIS_SYNC_BROWSER_REQUIRED=1 in the environment, they fail instead."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devtools.servers import free_port
from tests.support.commands import accepts

#: A program that runs the site that the browser tests visit. Its argument is the port. The users
#: vera and manu may view locks and semaphores, and manu may also manage them.
SERVE = """
import sys, django
from django.core.management import call_command
django.setup()
from django.contrib.auth.models import Permission, User
call_command("migrate", verbosity=0)
for name, codenames in {"vera": ["view_locks"], "manu": ["view_locks", "manage_locks"]}.items():
    user = User.objects.create_user(name, password="correct horse", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
call_command("runserver", f"127.0.0.1:{sys.argv[1]}", "--insecure", "--noreload")
"""
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = "headless=new no-sandbox disable-gpu disable-background-networking hide-scrollbars lang=en "
FLAGS += "disable-component-update disable-sync disable-dev-shm-usage no-first-run"


def _missing(what: str) -> None:
    message = f"no {what}: Debian has it as chromium and chromium-driver, pip has selenium"
    if os.environ.get("DJANGO_REDIS_SYNC_BROWSER_REQUIRED") == "1":
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A browser with a new profile, for all tests of the run."""
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
    except ImportError:
        _missing("selenium")
    binary = next(filter(None, map(shutil.which, CHROMIUM)), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        _missing("Chromium" if binary is None else "chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS.split(), f"user-data-dir={profile}"):
            options.add_argument(f"--{flag}")
        browser = webdriver.Chrome(options=options, service=Service(driver))
        yield browser
        browser.quit()


@pytest.fixture(scope="session")
def site(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that sends a strict CSP and uses the Redis of the test run."""
    with running_site(redis_url, tmp_path_factory.mktemp("site")) as address:
        yield address


@contextlib.contextmanager
def running_site(redis_url: str, folder: Path, **settings: str) -> Iterator[str]:
    """Run a site with its database in `folder`. Yield the address of the site."""
    port, log = free_port(), folder / "log"
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.browser.settings",
        "DJANGO_REDIS_SYNC_TEST_DB": str(folder / "db.sqlite3"),
        "DJANGO_REDIS_SYNC_TEST_URL": redis_url,
        **settings,
    }
    command = [sys.executable, "-c", SERVE, str(port)]
    with log.open("wb") as output:
        server = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        end = time.monotonic() + 60
        while not accepts(port):
            assert server.poll() is None and time.monotonic() < end, log.read_text()[-2000:]
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(10)


class Visitor:
    """A user of the admin in a browser."""

    def __init__(self, browser: Any, site: str) -> None:
        self.browser, self.site, self.run = browser, site, browser.execute_script

    def open(self, path: str = "") -> None:
        self.visit(f"/admin/django_redis_sync/name/{path}")

    def visit(self, path: str) -> None:
        """Go to a page, and wait until it is complete. On a busy machine, `browser.get()` may
        return while the browser still shows the old page or a part of the new page."""
        state_of_page = "return [performance.timeOrigin, document.readyState]"
        before, _ = self.run(state_of_page)
        self.browser.get(f"{self.site}{path}")

        def is_complete() -> bool:
            since, state = self.run(state_of_page)
            return since != before and state == "complete"

        self.wait_for(is_complete)

    def log_in(self, name: str) -> None:
        self.visit("/static/admin/img/search.svg")
        self.browser.delete_all_cookies()
        self.browser.add_cookie({"name": "user", "value": name})

    def all(self, css: str) -> list[Any]:
        return self.browser.find_elements("css selector", css)

    def first(self, css: str) -> Any:
        """Wait until the page has an element that matches `css`, and return the first one."""
        return self.wait_for(lambda: self.all(css))[0]

    def text(self, css: str) -> str:
        found = "const e = document.querySelector(arguments[0]); return e ? e.innerText : ''"
        return str(self.run(found, css))

    def click(self, css: str) -> None:
        found = self.first(css)
        # Scroll the element to the middle. At the edges, a header or footer of an admin theme could
        # cover it.
        self.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", found)
        found.click()

    def wait_for(self, what: Callable[[], Any], seconds: float = 30) -> Any:
        from selenium.common.exceptions import TimeoutException
        from selenium.webdriver.support.wait import WebDriverWait

        try:
            return WebDriverWait(self.browser, seconds, 0.1).until(lambda _: what())
        except TimeoutException:
            return pytest.fail(f"not within {seconds} s; the page says:\n{self.text('body')}")

    def wait_for_text(self, text: str, css: str = "#sync-live") -> None:
        self.wait_for(lambda: text in self.text(css))

    def errors(self) -> list[str]:
        """Return the CSP violations and the script errors in the browser's console."""
        messages = [entry["message"] for entry in self.browser.get_log("browser")]
        return [m for m in messages if "Content Security Policy" in m or "Uncaught" in m]

    def show(self, width: int, height: int, scheme: str = "light") -> None:
        """Set the size of the window and the color scheme. `reset()` restores them."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def reset(self) -> None:
        self.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.fixture
def visitor(chromium: Any, site: str, clean_redis: None) -> Iterator[Visitor]:
    """A user who has not logged in."""
    found = Visitor(chromium, site)
    chromium.get_log("browser")
    yield found
    found.reset()
    chromium.get("about:blank")  # leave the page, so that it sends no request while data is deleted


@pytest.fixture
def viewer(visitor: Visitor) -> Visitor:
    visitor.log_in("vera")
    return visitor


@pytest.fixture
def manager(visitor: Visitor) -> Visitor:
    visitor.log_in("manu")
    return visitor
