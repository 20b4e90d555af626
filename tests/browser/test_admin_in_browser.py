"""The admin pages in a browser: how they refresh themselves, and how operators act on locks."""

import math
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from devtools.servers import RedisServer
from django_redis_sync import Lease, LeaseLost, Lock, Semaphore
from tests.behaviour.both import eventually

from .conftest import Visitor, running_site

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

EVIL = "<img src=x onerror=document.title='owned'>"
UNUSED = "No lock or semaphore was used"


#: Lets the page refresh now, unless it is not live, or waits for an answer.
WAKE = "document.dispatchEvent(new Event('visibilitychange'));"


def refreshed(viewer: Visitor, css: str) -> str:
    """Return the text of an element, and let the page refresh. After an answer that came late, it
    would rest for long: four times as long as it has waited, by its clock."""
    viewer.run(WAKE)
    return viewer.text(css)


def test_admin_list_refreshes_without_a_page_reload(viewer: Visitor) -> None:
    viewer.open()
    now = "Date.now = () => %d"
    viewer.run(f"window.still = true; {now % 10**12}")
    assert UNUSED in viewer.text("#sync-live")
    viewer.wait_for_text("0 in use", "#sync-live-spoken")
    with Semaphore("search", 4):
        viewer.wait_for_text("1 / 4", "#row-search")
        assert "0 in use" in viewer.text("#sync-live-spoken"), "spoken twice within 10 s"
        viewer.run(now % (10**12 + 10_001))
        viewer.wait_for(lambda: "1 in use" in refreshed(viewer, "#sync-live-spoken"))
        with Semaphore("search", 4):
            viewer.wait_for(lambda: "2 / 4" in refreshed(viewer, "#row-search"))
            assert "1 in use" in viewer.text("#sync-live-spoken")
            viewer.run(now % (10**12 + 20_002))
            viewer.wait_for(lambda: "2 in use" in refreshed(viewer, "#sync-live-spoken"))
    assert viewer.run("return window.still") is True, "the page was reloaded"
    assert [] == viewer.errors()


def test_manager_releases_a_holder_and_the_next_waiter_is_admitted(manager: Visitor) -> None:
    def wait() -> None:
        with Semaphore("exports", 2, label="shop.tasks.next", blocking_timeout=600):
            leave.wait(600)

    leave, waiter = threading.Event(), threading.Thread(target=wait)
    stuck = Semaphore("exports", 2, timeout=math.inf, label="nightly_report").acquire()
    assert isinstance(stuck, Lease)
    with Semaphore("exports", 2, label="weekly_report"):
        waiter.start()
        eventually(lambda: Semaphore("exports", 2).status().waiting)
        manager.open("exports/change/")
        assert "nightly_report" in manager.text(f"#holder-{stuck.fence}")
        manager.click(f"#release-{stuck.fence}")
        manager.first("#confirm")
        assert "nightly_report" in manager.text("#content")
        assert "weekly_report" not in manager.text("#content")
        manager.click("#confirm")
        manager.wait_for_text("Released 1 holder of exports", ".messagelist")
        manager.wait_for_text("shop.tasks.next", "#holders")
        leave.set()
    waiter.join()
    with pytest.raises(LeaseLost):
        stuck.renew()
    assert [] == manager.errors()


def test_html_in_a_name_and_a_label_is_escaped(manager: Visitor) -> None:
    with Semaphore(EVIL, 2, label=EVIL):
        manager.open()
        manager.wait_for_text(EVIL, "#sync-names")
        manager.click("#sync-names tbody a")
        manager.first("#holders")
        assert EVIL in manager.text("h1") and EVIL in manager.text("[id^=holder-]")
        with Semaphore(EVIL, 2, label="newcomer"):
            manager.wait_for_text("newcomer")  # the page has refreshed itself
        for button in ("#act-pause", "#confirm"):
            manager.click(button)
        manager.wait_for_text(EVIL, ".messagelist")
    assert [] == manager.all("img[src=x]")
    assert manager.browser.title != "owned"
    assert [] == manager.errors()
    # Violate the Content-Security-Policy on purpose: `errors()` has to report it.
    script = "const e = document.createElement('style'); e.textContent = 'p {}'; "
    manager.run(script + "document.body.append(e)")
    assert manager.wait_for(manager.errors)


def test_live_refresh_keeps_focus_and_open_details(manager: Visitor) -> None:
    with Semaphore("exports", 3), Semaphore("exports", 3):
        manager.open("exports/change/")
        manager.run(
            "document.querySelector('#chart-numbers').open = true;"
            "document.querySelector('#act-clear').focus()"
        )
        with Semaphore("exports", 3, label="newcomer"):
            manager.wait_for_text("newcomer")
        manager.wait_for(lambda: "newcomer" not in manager.text("#sync-live"))
        state = "[document.activeElement.id, document.querySelector('#chart-numbers').open]"
        assert ["act-clear", True] == manager.run(f"return {state}")


#: JavaScript code. COUNT counts the requests of the page in the variable `asked`. WAKE makes the
#: page refresh itself.
COUNT = """
window.asked = 0;
const own = window.fetch;
window.fetch = (...given) => { asked++; return own(...given) };
"""


def test_live_refresh_stops_when_the_page_is_hidden_or_the_user_logs_out(
    viewer: Visitor,
) -> None:
    viewer.open()
    hidden = "Object.defineProperty(document, 'hidden', {configurable: true, get: () => %s});"
    viewer.run(COUNT)
    for stop, go in (
        (hidden % "true" + WAKE, hidden % "false" + WAKE),
        ("document.querySelector('#sync-live-on').click();" + WAKE,) * 2,
    ):
        before, asked = viewer.run(f"const before = asked; {stop} return [before, asked]")
        assert before == asked, "a request was sent"
        viewer.wait_for(lambda go=go, before=before: viewer.run(f"{go} return asked") > before)
        # The last click may have unchecked it, if the page still waited for an answer.
        viewer.run("document.querySelector('#sync-live-on').checked = true;" + WAKE)
    with Lock("late"):
        viewer.wait_for(lambda: "late" in refreshed(viewer, "#sync-live"))
    viewer.browser.delete_all_cookies()  # without a session, the page stops its requests
    viewer.wait_for(lambda: viewer.text("#sync-live-state"))
    assert not viewer.first("#sync-live-on").is_selected()


def test_page_recovers_after_redis_was_down(
    chromium: Any, tmp_path: Path, new_server: Callable[..., RedisServer]
) -> None:
    with ExitStack() as stack:
        server = new_server()
        visitor = Visitor(chromium, stack.enter_context(running_site(server.url, tmp_path)))
        stack.callback(chromium.get, "about:blank")
        visitor.log_in("vera")
        visitor.open()
        assert UNUSED in visitor.text("#sync-live")
        server.kill()
        visitor.wait_for_text("Check that the server is running")
        server.restart()
        visitor.wait_for_text(UNUSED)
        assert [] == visitor.errors()
