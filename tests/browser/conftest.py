"""Fixtures with a real Chromium and a real server. Without Chromium, the tests are skipped.

Environment: with DJANGO_REDIS_SYNC_BROWSER_REQUIRED=1, such tests fail instead.
DJANGO_REDIS_SYNC_SHOTS is a directory for screenshots.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from devtools.servers import free_port

from .server import PASSWORD

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--lang=en",
)


def _missing(what: str) -> None:
    message = f"{what}: Debian has it as chromium and chromium-driver, pip has selenium"
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
        _missing("no selenium")
    binary = next(filter(None, map(shutil.which, CHROMIUM)), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        _missing("no Chromium" if binary is None else "no chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        browser = webdriver.Chrome(options=options, service=Service(driver))
        yield browser
        browser.quit()


@pytest.fixture(scope="session")
def site(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that sends a strict CSP and uses the Redis of the test run."""
    with running_site(redis_url, tmp_path_factory.mktemp("site")) as address:
        yield address


@contextlib.contextmanager
def running_site(redis_url: str, folder: Path) -> Iterator[str]:
    """Run a site with its database in `folder`. Yield its address."""
    port = free_port()
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.browser.settings",
        "DJANGO_REDIS_SYNC_TEST_DB": str(folder / "db.sqlite3"),
        "DJANGO_REDIS_SYNC_TEST_URL": redis_url,
    }
    command = [sys.executable, "-m", "tests.browser.server", str(port)]
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        _wait_until_up(server, port, folder / "log")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(10)


def _wait_until_up(server: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    end = time.monotonic() + 30
    while server.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    pytest.fail(f"the site did not start:\n{log.read_text()[-2000:]}")


class Visitor:
    """A user of the admin in a browser."""

    cookies: ClassVar[dict[tuple[str, str], list[Any]]] = {}

    def __init__(self, browser: Any, site: str) -> None:
        self.browser, self.site = browser, site

    def open(self, path: str = "") -> None:
        self.visit(f"/admin/django_redis_sync/name/{path}")

    def visit(self, path: str) -> None:
        """Go to a page, and wait until it is complete. On a busy machine, the driver may return
        while the new page is incomplete or has not replaced the old one."""
        state_of_page = "return [performance.timeOrigin, document.readyState]"
        before, _ = self.browser.execute_script(state_of_page)
        self.browser.get(f"{self.site}{path}")

        def is_complete() -> bool:
            since, state = self.browser.execute_script(state_of_page)
            return since != before and state == "complete"

        self.wait_for(is_complete)

    def log_in(self, name: str) -> None:
        """Log in with the form once per site and user, later with the cookies of that login."""
        self.visit("/static/admin/img/search.svg")
        self.browser.delete_all_cookies()
        for cookie in self.cookies.get((self.site, name), []):
            self.browser.add_cookie(cookie)
        if (self.site, name) not in self.cookies:
            self.visit("/admin/login/?next=/admin/")
            self.first("[name=username]").send_keys(name)
            self.first("[name=password]").send_keys(PASSWORD)
            self.click("[type=submit]")
            # The form disappears before the browser has the response with the cookie.
            self.wait_for(lambda: self.browser.get_cookie("sessionid"))
            self.cookies[self.site, name] = self.browser.get_cookies()

    def all(self, css: str) -> list[Any]:
        return self.browser.find_elements("css selector", css)

    def first(self, css: str) -> Any:
        return (self.all(css) or pytest.fail(f"no {css}; the page says:\n{self.text('body')}"))[0]

    def text(self, css: str) -> str:
        return str(
            self.browser.execute_script(
                "const e = document.querySelector(arguments[0]); return e ? e.innerText : ''", css
            )
        )

    def click(self, css: str) -> None:
        found = self.wait_for(lambda: self.all(css))[0]
        # Scroll it away from the edges, where skins have fixed headers and footers.
        self.browser.execute_script(
            "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", found
        )
        found.click()

    def wait_for(self, what: Callable[[], Any], seconds: float = 12) -> Any:
        from selenium.common.exceptions import TimeoutException
        from selenium.webdriver.support.wait import WebDriverWait

        try:
            return WebDriverWait(self.browser, seconds, 0.1).until(lambda _: what())
        except TimeoutException:
            return pytest.fail(f"not within {seconds} s; the page says:\n{self.text('body')}")

    def errors(self) -> list[str]:
        """Return the console's CSP violations and errors of scripts."""
        messages = [entry["message"] for entry in self.browser.get_log("browser")]
        return [m for m in messages if "Content Security Policy" in m or "Uncaught" in m]

    def shoot(self, name: str) -> None:
        folder = os.environ.get("DJANGO_REDIS_SYNC_SHOTS")
        if not folder:
            return
        Path(folder).mkdir(parents=True, exist_ok=True)
        for width, device in ((1280, "desktop"), (390, "phone")):
            for scheme in ("light", "dark"):
                self.show(width, 900, scheme)
                height = self.browser.execute_script("return document.documentElement.scrollHeight")
                self.show(width, max(700, min(height, 4000)), scheme)
                time.sleep(0.3)  # transitions change the colors of links
                self.browser.save_screenshot(str(Path(folder, f"{name}-{device}-{scheme}.png")))
        self.reset()

    def reset(self) -> None:
        """Restore the width and the colors of the browser."""
        self.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})

    def show(self, width: int, height: int, scheme: str) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


@pytest.fixture
def at_the_browser(chromium: Any, site: str, clean_redis: None) -> Iterator[Visitor]:
    visitor = Visitor(chromium, site)
    visitor.browser.get_log("browser")
    yield visitor
    visitor.browser.get("about:blank")  # the page sends no request while the data is deleted


@pytest.fixture
def viewer(at_the_browser: Visitor) -> Visitor:
    at_the_browser.log_in("vera")
    return at_the_browser


@pytest.fixture
def manager(at_the_browser: Visitor) -> Visitor:
    at_the_browser.log_in("manu")
    return at_the_browser
