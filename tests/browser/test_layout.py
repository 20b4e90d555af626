"""The layout of the admin pages: accessibility, phones, right-to-left languages, and admin themes.

`make deep` tests more window widths and more themes (skins).
"""

import math
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from django_redis_sync import Lock, Semaphore
from tests.support.operators import locks
from tests.support.renewers import fresh_renewer, listed  # noqa: F401 - a fixture

from .conftest import Visitor, running_site

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(240),
    pytest.mark.usefixtures("fresh_renewer"),
]

SKINS = ("grappelli", "unfold", "jazzmin", "custom")
deep = pytest.mark.deep
DEEP_SKINS = [pytest.param(skin, "en", marks=deep) for skin in SKINS]
WIDTHS = (390, 820, 1280)
PAGES = (
    *("", "layout-imports/change/", "layout-api/change/", "layout-uploads/history/"),
    "layout-imports/act/pause/",  # the page that asks for a confirmation
)

# A script that returns the links and inputs that are smaller than 24 pixels.
SMALL = """
return [...document.querySelectorAll('.sync-page :is(a, button, input, select, summary)')]
    .filter((e) => e.offsetParent && e.type !== 'hidden')
    .filter((e) => { const r = e.getBoundingClientRect(); return r.height < 24 || r.width < 24; })
    .map((e) => e.outerHTML.slice(0, 120));
"""

# A script that returns the buttons with a defect: clipped or invisible text, or no border.
BUTTONS = """
return [...document.querySelectorAll('.sync-page .sync-button')].filter((b) => b.offsetParent)
    .filter((b) => {
        const s = getComputedStyle(b), text = b.value || b.innerText;
        return !text.trim() || b.scrollWidth > b.clientWidth + 1 || b.offsetWidth < 40
            || s.color === s.backgroundColor || s.borderTopWidth === '0px'
            || s.textIndent !== '0px';
    }).map((b) => b.outerHTML.slice(0, 120));
"""

# A script that returns elements with content that is wider than the element.
WIDER = """
return [...document.querySelectorAll('.results, html')]
    .filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.className);
"""


@pytest.fixture
def busy() -> Iterator[None]:
    """Create locks and semaphores in all states that the admin pages show, for the whole test."""
    ended = threading.Event()

    def wait() -> None:
        imports = Semaphore("layout-imports", 2, label="waits")
        while not ended.is_set():
            if imports.acquire(blocking_timeout=1):
                imports.release()

    waiter = threading.Thread(target=wait)
    with ExitStack() as stack:
        stack.callback(lambda: waiter.is_alive() and waiter.join())
        stack.callback(ended.set)
        for label in ("nightly import", "shop.tasks.send_the_bills_of_the_month"):
            imports = Semaphore("layout-imports", 2, timeout=math.inf, label=label)
            stack.enter_context(imports)
        stack.enter_context(Lock("layout-nightly report", timeout=math.inf))
        for key in range(7):
            stack.enter_context(Semaphore("layout-api", 3, key=str(key)))
        stack.enter_context(Semaphore("layout-uploads", 4))
        assert Semaphore("layout-imports", 2).acquire(blocking=False) is None
        locks("resize", "layout-uploads", "2")
        locks("pause", "layout-uploads", "--reason", "the disk is full")
        waiter.start()
        yield


@pytest.fixture
def listing(busy: None, manager: Visitor) -> Visitor:
    """The browser of a manager, at the page that lists all locks and semaphores."""
    manager.open()
    manager.wait_for(lambda: len(manager.all("#sync-names tbody tr")) >= 4)
    return manager


def violations(visitor: Visitor) -> list[str]:
    """Run axe-core on the part of the page that this app renders. Return the accessibility problems
    that it finds."""
    visitor.run(files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    found: dict[str, Any] = visitor.browser.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        "axe.run('.sync-page').then(done, (error) => done({error: String(error)}));"
    )
    assert "error" not in found, found
    return [
        f"{one['id']}: {node['target']} {node['failureSummary']}"
        for one in found["violations"]
        for node in one["nodes"]
    ]


def check_pages(visitor: Visitor, widths: tuple[int, ...], schemes: tuple[str, ...]) -> None:
    """Check each page at each window width (in pixels) and in each color scheme. Assert that the
    page has no accessibility problems, no clipped buttons, and no small links."""
    pytest.importorskip("axe_core_python")
    for page in PAGES:
        visitor.open(page)
        for width in widths:
            for scheme in schemes:
                visitor.show(width, 1600, scheme)
                visitor.run("document.getAnimations().forEach((one) => one.finish())")
                where = (page, width, scheme)
                assert ([], where) == (violations(visitor), where)
                for wrong in (BUTTONS, SMALL):
                    assert ([], where) == (visitor.run(wrong), where)


@pytest.mark.parametrize(
    ("widths", "schemes"),
    [
        ((1280,), ("light",)),
        ((390,), ("dark",)),
        pytest.param(WIDTHS, ("light", "dark"), marks=deep),
    ],
)
def test_pages_have_no_axe_violations(
    listing: Visitor, widths: tuple[int, ...], schemes: tuple[str, ...]
) -> None:
    check_pages(listing, widths, schemes)


def test_admin_pages_fit_every_window_width(listing: Visitor) -> None:
    """The sidebar of Django's admin is open, and takes 300 pixels of the window's width."""
    cell = "getComputedStyle(document.querySelector('#sync-names td[data-label]')).display"
    heights = "[...document.querySelectorAll('#sync-names tbody tr')].map((e) => e.offsetHeight)"
    for width, display in ((1280, "table-cell"), (820, "table-cell"), (390, "flex")):
        listing.show(width, 844)
        assert (width, display) == (width, listing.run(f"return {cell}"))
    assert max(listing.run(f"return {heights}")) < 120
    for path in ("", *PAGES):
        if path:
            listing.open(path)
        for width in (390, 700, 800, 1024, 1120, 1280, 1920):
            listing.show(width, 900)
            assert (path, width, []) == (path, width, listing.run(WIDER))
    assert [] == listing.errors()


@pytest.mark.parametrize(("skin", "language"), [("custom", "ar"), *DEEP_SKINS])
def test_button_texts_and_chart_lines_are_visible_in_each_skin(
    chromium: Any,
    redis_url: str,
    tmp_path: Path,
    clean_redis: None,
    busy: None,
    skin: str,
    language: str,
) -> None:
    """A skin is a theme of the admin. On a right-to-left page, untranslated texts run from left to
    right."""
    if skin != "custom":
        pytest.importorskip(skin)
    with ExitStack() as stack:
        stack.callback(chromium.get, "about:blank")
        site = running_site(redis_url, tmp_path, SKIN=skin, ADMIN_LANGUAGE=language)
        manager = Visitor(chromium, stack.enter_context(site))
        stack.callback(manager.reset)
        manager.log_in("manu")
        manager.open()
        manager.first(".sync-spark polyline")
        style = "const style = (css) => getComputedStyle(document.querySelector(css)); return style"
        assert "none" != manager.run(f"{style}('.sync-spark polyline').stroke")
        assert [] == manager.run(BUTTONS)
        manager.open("layout-imports/change/")
        assert manager.run(f"{style}('.sync-area').fill") not in ("rgb(0, 0, 0)", "none")
        directions = manager.run(f"{style}('html').direction + ' ' + style('.sync-big').direction")
        assert ("rtl ltr" if language == "ar" else "ltr ltr") == directions
        assert [] == manager.run(BUTTONS)
        assert "layout-imports" == manager.text(".sync-title")
        manager.click("#act-pause")
        manager.first("#id_reason").send_keys("tried in a skin")
        assert re.search(r"Now: 2 holders, \d waiting", manager.text(".sync-page"))
        assert [] == manager.run(BUTTONS)
        manager.click("#confirm")
        manager.first("#act-resume")
        assert Semaphore("layout-imports", 2).status().paused
        if language == "en":  # only `make deep` runs this case
            check_pages(manager, WIDTHS, ("light",))
