"""The layout of the pages: accessibility, phones, right-to-left languages, and skins.

`make deep` tests all sizes, and skins other than Django's.
"""

import math
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from django_redis_sync import Lock, Semaphore
from django_redis_sync.operators import actions
from django_redis_sync.operators.status import status_of
from tests.behaviour.both import eventually
from tests.support.keepers import fresh_keeper, listed  # noqa: F401 - a fixture

from .conftest import Visitor, running_site

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(180),
    pytest.mark.usefixtures("fresh_keeper"),
]

SKINS = ("grappelli", "unfold", "jazzmin", "custom")
WIDTHS = (390, 820, 1280)
PAGES = (
    *("", "layout-imports/change/", "layout-api/change/", "layout-uploads/history/"),
    "layout-imports/act/pause/",  # asks for a confirmation
)
PAGE = ".sync-page"

# A script that returns the links and inputs that are smaller than 24 pixels.
SMALL = """
return [...document.querySelectorAll('.sync-page :is(a, button, input, select, summary)')]
    .filter((e) => e.offsetParent && e.type !== 'hidden')
    .filter((e) => { const r = e.getBoundingClientRect(); return r.height < 24 || r.width < 24; })
    .map((e) => e.outerHTML.slice(0, 120));
"""

# A script that returns the buttons whose text is clipped, or which have no visible text or border.
BUTTONS = """
return [...document.querySelectorAll('.sync-page .sync-button')].filter((b) => b.offsetParent)
    .filter((b) => {
        const s = getComputedStyle(b), text = b.value || b.innerText;
        return !text.trim() || b.scrollWidth > b.clientWidth + 1 || b.offsetWidth < 40
            || s.color === s.backgroundColor || s.borderTopWidth === '0px'
            || s.textIndent !== '0px';
    }).map((b) => b.outerHTML.slice(0, 120));
"""


@pytest.fixture
def busy() -> Iterator[None]:
    """Names in all states that the pages show."""
    with ExitStack() as stack:
        for _ in range(2):
            imports = Semaphore("layout-imports", 2, timeout=math.inf, label="nightly import")
            stack.enter_context(imports)
        stack.enter_context(Lock("layout-nightly", timeout=math.inf))
        for key in range(7):
            stack.enter_context(Semaphore("layout-api", 3, key=str(key)))
        stack.enter_context(Semaphore("layout-uploads", 4))
        actions.resize("layout-uploads", None, 2)
        actions.pause("layout-uploads", reason="the disk is full")
        assert Semaphore("layout-imports", 2).acquire(blocking=False) is None
        ended = threading.Event()
        waiter = threading.Thread(target=_wait, args=(ended,))
        waiter.start()
        stack.callback(waiter.join)
        stack.callback(ended.set)
        eventually(lambda: listed("layout-nightly", "layout-api@6"))
        yield


def _wait(ended: threading.Event) -> None:
    while not ended.is_set():
        Semaphore("layout-imports", 2, label="waits").acquire(blocking_timeout=1)


def violations(visitor: Visitor) -> list[str]:
    """Return what axe-core finds in the part of the page that this app renders."""
    source = files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    visitor.browser.execute_script(source)
    found: dict[str, Any] = visitor.browser.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        f"axe.run({PAGE!r}).then(done, (error) => done({{violations: [], error: String(error)}}));"
    )
    assert "error" not in found, found
    return [
        f"{one['id']}: {node['target']} {node['failureSummary']}"
        for one in found["violations"]
        for node in one["nodes"]
    ]


def check_pages(
    visitor: Visitor, name: str, widths: tuple[int, ...], schemes: tuple[str, ...]
) -> None:
    """Assert that no page has violations, clipped buttons, or small links."""
    folder = os.environ.get("DJANGO_REDIS_SYNC_SHOTS")
    for page in PAGES:
        visitor.open(page)
        for width in widths:
            for scheme in schemes:
                visitor.show(width, 1600, scheme)
                time.sleep(0.3)  # transitions change the colors
                if folder:
                    part = "confirm" if "/act/" in page else page.partition("/")[0] or "list"
                    Path(folder).mkdir(parents=True, exist_ok=True)
                    file = Path(folder, f"{name}-{part}-{width}-{scheme}.png")
                    visitor.browser.save_screenshot(str(file))
                where = (name, page, width, scheme)
                assert ([], where) == (violations(visitor), where)
                for wrong in (BUTTONS, SMALL):
                    assert ([], where) == (visitor.browser.execute_script(wrong), where)
        visitor.reset()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_pages_have_no_axe_violations(
    manager: Visitor, busy: None, width: int, scheme: str
) -> None:
    pytest.importorskip("axe_core_python")
    check_pages(manager, "django", (width,), (scheme,))


@pytest.mark.deep
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_have_no_axe_violations_at_any_width(
    manager: Visitor, busy: None, scheme: str
) -> None:
    pytest.importorskip("axe_core_python")
    check_pages(manager, "django", WIDTHS, (scheme,))


def test_list_is_a_table_on_a_tablet_and_cards_on_a_phone(manager: Visitor, busy: None) -> None:
    manager.open()
    for width, display in ((1280, "table-cell"), (820, "table-cell"), (390, "flex")):
        manager.show(width, 900, "light")
        shown = manager.browser.execute_script(
            "return getComputedStyle(document.querySelector('#sync-names td[data-label]')).display"
        )
        wider = manager.browser.execute_script(
            "return document.documentElement.scrollWidth - window.innerWidth"
        )
        assert (width, display, True) == (width, shown, wider <= 0)
    manager.reset()


def test_rows_of_the_list_are_lower_than_100_pixels_on_a_phone(
    manager: Visitor, busy: None
) -> None:
    for n in range(20):
        with Semaphore(f"layout-idle-{n}", 1):
            pass
    eventually(lambda: listed("layout-idle-19"))
    manager.open()
    manager.show(390, 844, "light")
    height, rows = manager.browser.execute_script(
        "const t = document.querySelector('#sync-names');"
        "return [t.offsetHeight, t.tBodies[0].rows.length]"
    )
    manager.reset()
    assert rows >= 18
    assert height / rows < 100


@pytest.fixture(scope="module")
def skinned(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return a function that starts a site with a skin, and returns its address."""
    with ExitStack() as stack:
        sites: dict[tuple[str, str], str] = {}

        def site(skin: str, language: str = "en") -> str:
            if skin in ("grappelli", "unfold", "jazzmin"):
                pytest.importorskip(skin)
            if (skin, language) not in sites:
                given = {"DJANGO_REDIS_SYNC_SKIN": skin, "DJANGO_REDIS_SYNC_LANGUAGE": language}
                with pytest.MonkeyPatch.context() as patch:
                    for name, value in given.items():
                        patch.setenv(name, value)
                    folder = tmp_path_factory.mktemp(f"{skin}-{language}")
                    sites[skin, language] = stack.enter_context(running_site(redis_url, folder))
            return sites[skin, language]

        yield site


@pytest.fixture
def in_skin(chromium: Any, skinned: Any, busy: None) -> Iterator[Any]:
    """Return a function that logs manu in to a site with a skin."""

    def manager(skin: str, language: str = "en") -> Visitor:
        visitor = Visitor(chromium, skinned(skin, language))
        visitor.log_in("manu")
        return visitor

    yield manager
    chromium.get("about:blank")


@pytest.mark.parametrize(
    "skin", [pytest.param(skin, marks=[pytest.mark.deep] * (skin != "custom")) for skin in SKINS]
)
def test_skin_keeps_button_texts_and_chart_lines(in_skin: Any, skin: str) -> None:
    manager = in_skin(skin)
    manager.open()
    stroke = "return getComputedStyle(document.querySelector('.sync-spark polyline')).stroke"
    assert "none" != manager.browser.execute_script(stroke)
    assert [] == manager.browser.execute_script(BUTTONS)
    manager.open("layout-imports/change/")
    fill = "return getComputedStyle(document.querySelector('.sync-area')).fill"
    assert manager.browser.execute_script(fill) not in ("rgb(0, 0, 0)", "none")
    assert [] == manager.browser.execute_script(BUTTONS)
    assert "layout-imports" == manager.text(".sync-title")
    manager.click("#act-pause")
    manager.wait_for(lambda: manager.all("#confirm"))
    assert re.search(r"Now: 2 holders, \d waiting", manager.text(".sync-page"))
    assert [] == manager.browser.execute_script(BUTTONS)
    manager.first("#id_reason").send_keys("tried in a skin")
    manager.click("#confirm")
    manager.wait_for(lambda: manager.all("#act-resume"))
    assert status_of("layout-imports").paused


@pytest.mark.deep
@pytest.mark.parametrize("skin", SKINS)
def test_pages_have_no_axe_violations_in_a_skin(in_skin: Any, skin: str) -> None:
    pytest.importorskip("axe_core_python")
    check_pages(in_skin(skin), skin, WIDTHS, ("light",))


def test_english_texts_run_from_left_to_right_in_a_right_to_left_page(in_skin: Any) -> None:
    """The texts have no Arabic translation, so the page shows them in English."""
    manager = in_skin("custom", "ar")
    manager.open("layout-imports/change/")
    assert "rtl" == manager.browser.execute_script("return document.documentElement.dir")
    find = (
        "const p = document.querySelector('.sync-big'), range = document.createRange();"
        "const walk = document.createTreeWalker(p, NodeFilter.SHOW_TEXT);"
        "const at = (word) => { walk.currentNode = p; for (let n; n = walk.nextNode();) {"
        " const i = n.data.indexOf(word); if (i >= 0) { range.setStart(n, i);"
        " range.setEnd(n, i + word.length); return range.getBoundingClientRect().left; } } };"
        "return [at('2 of'), at('in use')]"
    )
    first, last = manager.browser.execute_script(find)
    assert first < last
