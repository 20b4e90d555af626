"""The pages of the admin in a browser."""

import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from devtools.servers import RedisServer
from django_redis_sync import Lease, LeaseLost, Lock, Semaphore
from django_redis_sync.operators import actions
from django_redis_sync.operators.status import status_of

from .conftest import Visitor, running_site

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

EVIL = "<img src=x onerror=document.title='owned'>"


@contextmanager
def traffic(name: str = "search", limit: int = 4, threads: int = 6) -> Iterator[None]:
    """Run threads that acquire and release permits until the end of the block."""
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            lease = Semaphore(name, limit, label="shop.views.search").acquire(blocking_timeout=0.2)
            if isinstance(lease, Lease):
                time.sleep(random.uniform(0.05, 0.3))
                lease.release()
                ended.wait(random.uniform(0, 0.3))

    started = [threading.Thread(target=run, name=f"traffic-{n}") for n in range(threads)]
    for thread in started:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in started:
            thread.join()


class Waiting:
    """A thread that waits for a permit, and holds it until `end()`."""

    def __init__(self, name: str, limit: int, label: str = "shop.tasks.next") -> None:
        self.granted, self.leave = threading.Event(), threading.Event()
        self.semaphore = Semaphore(name, limit, label=label)
        self.thread = threading.Thread(target=self._run, name="waiting")
        self.thread.start()

    def _run(self) -> None:
        lease = self.semaphore.acquire(blocking_timeout=60)
        if lease is not None:
            self.granted.set()
            self.leave.wait(60)
            lease.release()

    def end(self) -> None:
        self.leave.set()
        self.thread.join()


def wait_for_queue(name: str, length: int) -> None:
    end = time.monotonic() + 5
    while status_of(name).waiting != length:
        assert time.monotonic() < end, f"not {length} waiters"
        time.sleep(0.02)


def press_and_confirm(manager: Visitor, button: str) -> None:
    """Press a button on the page of a name, and confirm the action."""
    manager.click(button)
    manager.wait_for(lambda: manager.all("#confirm"))
    manager.click("#confirm")
    manager.wait_for(lambda: manager.all(".messagelist"))


def test_list_changes_without_a_reload(viewer: Visitor) -> None:
    viewer.open()
    viewer.browser.execute_script("window.still = true")
    assert "No lock or semaphore was used" in viewer.text("#sync-live")

    with traffic(threads=3):
        viewer.wait_for(lambda: "search" in viewer.text("#sync-names"))
        seen = {viewer.text("#row-search")}
        viewer.wait_for(lambda: seen.add(viewer.text("#row-search")) or len(seen) > 1)

    assert viewer.browser.execute_script("return window.still") is True
    assert viewer.wait_for(lambda: "in use" in viewer.text("#sync-live-spoken"))
    assert viewer.errors() == []


def test_screen_reader_announcements_are_limited(viewer: Visitor) -> None:
    viewer.open()
    now = "Date.now = () => %d"
    viewer.browser.execute_script(now % 10**12)
    with Lock("first"):
        viewer.wait_for(lambda: "1 in use" in viewer.text("#sync-live-spoken"))
        with Lock("second"):
            viewer.wait_for(lambda: "second" in viewer.text("#sync-live"))
            assert "1 in use" in viewer.text("#sync-live-spoken")
            viewer.browser.execute_script(now % (10**12 + 10_001))
            viewer.wait_for(lambda: "2 in use" in viewer.text("#sync-live-spoken"))


def test_viewer_gets_no_action_buttons(viewer: Visitor) -> None:
    with Semaphore("exports", 2):
        viewer.open("exports/change/")

        assert viewer.wait_for(lambda: viewer.all("[id^=holder-]"))
        assert [] == viewer.all(".sync-page .sync-button, .sync-page a[href*='/act/']")


def test_manager_releases_a_holder_and_the_next_waiter_is_admitted(manager: Visitor) -> None:
    stuck = Semaphore("exports", 2, timeout=math.inf, label="nightly_report").acquire()
    other = Semaphore("exports", 2, label="weekly_report").acquire()
    assert isinstance(stuck, Lease) and isinstance(other, Lease)
    waiting = Waiting("exports", 2)
    wait_for_queue("exports", 1)

    manager.open("exports/change/")
    manager.shoot("name")
    assert manager.wait_for(lambda: "nightly_report" in manager.text(f"#holder-{stuck.fence}"))
    manager.click(f"#release-{stuck.fence}")
    manager.wait_for(lambda: manager.all("#confirm"))
    manager.shoot("confirm")
    assert "nightly_report" in manager.text("#content")
    assert "weekly_report" not in manager.text("#content")
    manager.click("#confirm")

    assert waiting.granted.wait(30)
    manager.wait_for(lambda: manager.all(".messagelist"))
    assert "Released 1 holder of exports" in manager.text(".messagelist")
    manager.wait_for(lambda: "shop.tasks.next" in manager.text("#sync-live"))
    with pytest.raises(LeaseLost):
        stuck.renew()
    other.renew()
    other.release()
    waiting.end()
    assert manager.errors() == []


def test_manager_pauses_and_resumes(manager: Visitor) -> None:
    with Semaphore("exports", 2):
        manager.open("exports/change/")
        press_and_confirm(manager, "#act-pause")
        assert "paused" in manager.text("#now")

        assert Semaphore("exports", 2).acquire(blocking=False) is None
        waiting = Waiting("exports", 2)
        wait_for_queue("exports", 1)

        press_and_confirm(manager, "#act-resume")
        assert waiting.granted.wait(30)
        waiting.end()
    assert manager.errors() == []


def test_manager_resizes_and_resets(manager: Visitor) -> None:
    with Lock("report"):
        waiting = Waiting("report", 1)
        wait_for_queue("report", 1)
        manager.open("report/change/")
        manager.click("#act-resize")
        box = manager.wait_for(lambda: manager.all("#id_limit"))[0]
        box.clear()
        box.send_keys("2")
        manager.click("#confirm")
        manager.wait_for(lambda: manager.all(".messagelist"))

        assert waiting.granted.wait(30)
        assert status_of("report").override == 2
        assert "resized" in manager.text("#now")
        waiting.end()
    press_and_confirm(manager, "#act-reset")
    assert status_of("report").override is None


def test_html_in_a_name_and_a_label_is_escaped(manager: Visitor) -> None:
    with Semaphore(EVIL, 2, label=EVIL):
        manager.open()
        manager.wait_for(lambda: EVIL in manager.text("#sync-names"))

        manager.click("#sync-names tbody a")
        manager.wait_for(lambda: manager.all("#holders"))
        assert EVIL in manager.text("h1") and EVIL in manager.text("[id^=holder-]")
        time.sleep(2.5)
        press_and_confirm(manager, "#act-pause")
        assert EVIL in manager.text(".messagelist")

    assert manager.all("img[src=x]") == []
    assert manager.browser.title != "owned"
    assert manager.errors() == []


def test_csp_violation_is_found_in_the_console(viewer: Visitor) -> None:
    """So the other tests, which find no violation, would find one."""
    viewer.open()
    viewer.browser.execute_script(
        "const e = document.createElement('style'); e.textContent = 'p {}'; document.body.append(e)"
    )
    assert viewer.wait_for(viewer.errors)


def test_live_refresh_keeps_focus_and_open_details(manager: Visitor) -> None:
    held = Semaphore("exports", 3)
    with held, held:
        manager.open("exports/change/")
        manager.browser.execute_script(
            "document.querySelector('#chart-numbers').open = true;"
            "document.querySelector('#act-clear').focus()"
        )
        with Semaphore("exports", 3, label="newcomer"):
            manager.wait_for(lambda: "newcomer" in manager.text("#sync-live"))
        manager.wait_for(lambda: "newcomer" not in manager.text("#sync-live"))

        focused, still_open = manager.browser.execute_script(
            "return [document.activeElement.id, document.querySelector('#chart-numbers').open]"
        )
    assert (focused, still_open) == ("act-clear", True)


def test_live_refresh_stops_when_switched_off_or_logged_out(viewer: Visitor) -> None:
    viewer.open()
    viewer.click("#sync-live-on")
    with Lock("late"):
        time.sleep(2.5)
        assert "late" not in viewer.text("#sync-live")
        viewer.click("#sync-live-on")
        viewer.wait_for(lambda: "late" in viewer.text("#sync-live"))
    viewer.browser.delete_all_cookies()  # without a session, the page stops its requests
    viewer.wait_for(lambda: viewer.text("#sync-live-state"))
    assert not viewer.all("#sync-live-on")[0].is_selected()


def test_hidden_tab_sends_no_requests(viewer: Visitor) -> None:
    viewer.open()
    hide = "Object.defineProperty(document, 'hidden', {configurable: true, get: () => %s});"
    viewer.browser.execute_script(hide % "true")
    with Lock("unseen"):
        time.sleep(2.5)
        assert "unseen" not in viewer.text("#sync-live")
        wake = "document.dispatchEvent(new Event('visibilitychange'))"
        viewer.browser.execute_script(hide % "false" + wake)
        viewer.wait_for(lambda: "unseen" in viewer.text("#sync-live"))


def test_pages_work_without_javascript(manager: Visitor) -> None:
    switch = "Emulation.setScriptExecutionDisabled"
    manager.browser.execute_cdp_cmd(switch, {"value": True})
    try:
        lease = Lock("plain").acquire()
        assert isinstance(lease, Lease)
        manager.open("plain/change/")
        for button in (f"#release-{lease.fence}", "#confirm"):
            manager.wait_for(lambda css=button: manager.all(css))
            manager.click(button)
        manager.wait_for(lambda: not lease.owned())
    finally:
        manager.browser.execute_cdp_cmd(switch, {"value": False})
    assert not status_of("plain").holders


WIDTHS = (390, 700, 800, 1024, 1120, 1280, 1920)


def test_pages_fit_every_width(manager: Visitor) -> None:
    """Django's open sidebar takes 300 pixels of the window."""
    wider = "return [...document.querySelectorAll('.results, html')]"
    wider += ".filter(e => e.scrollWidth > e.clientWidth).map(e => e.className)"
    with traffic("shop.views.search"), Lock("nightly report", timeout=math.inf):
        actions.pause("nightly report")
        actions.resize("nightly report", None, 3)
        waiting = Waiting("shop.tasks.bill", 1)
        held = Waiting("shop.tasks.bill", 1, label="shop.tasks.send_the_bills_of_the_month")
        wait_for_queue("shop.tasks.bill", 1)
        manager.open()
        manager.wait_for(lambda: all(x in manager.text("#sync-live") for x in ("bill", "search")))
        for path in ("", "shop.tasks.bill/change/"):
            manager.open(path)
            for width in WIDTHS:
                manager.show(width, 900, "light")
                assert manager.browser.execute_script(wider) == [], (path, width)
        manager.reset()
        waiting.end()
        held.end()


def test_page_recovers_after_redis_was_down(
    chromium: Any, tmp_path: Path, new_server: Callable[..., RedisServer]
) -> None:
    server = new_server()
    with running_site(server.url, tmp_path) as site:
        visitor = Visitor(chromium, site)
        visitor.log_in("vera")
        visitor.open()
        assert "No lock or semaphore was used" in visitor.text("#sync-live")

        server.kill()
        visitor.wait_for(lambda: "Check that the server is running" in visitor.text("#sync-live"))
        visitor.shoot("down")
        server.restart()
        visitor.wait_for(lambda: "No lock or semaphore was used" in visitor.text("#sync-live"))
        assert visitor.errors() == []
        visitor.browser.get("about:blank")


def test_full_list_has_no_csp_violations(manager: Visitor) -> None:
    """The page has all kinds of rows. Screenshots show it, too."""
    held = [
        Semaphore(name, limit, key=key, label=label).acquire()
        for name, limit, key, label in (
            ("exports", 3, None, "reports:export"),
            ("exports", 3, None, "reports:weekly"),
            ("exports", 3, None, EVIL),
            (EVIL, 2, None, "shop"),
            ("invoice:42", 1, None, "shop.tasks.bill"),
            *(("api", 4, str(user), "api:list") for user in range(8)),
        )
    ]
    actions.resize("invoice:42", None, 3)
    actions.pause("exports")
    with traffic("lookup", threads=7):
        manager.open()
        manager.wait_for(lambda: "lookup" in manager.text("#sync-live"))
        manager.shoot("list")
        manager.open("lookup/change/")
        manager.shoot("busy-name")
        manager.open("api/change/")
        manager.shoot("policy")
    assert "in 8 keys" in manager.text("#sync-live") or manager.all("#keys-title")
    assert manager.errors() == []
    for lease in held:
        assert isinstance(lease, Lease)
        lease.release()
