"""The looks of the pages: accessibility, phones, right-to-left languages, and skins.

All sizes, and skins other than Django's, are for `make deep`.
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
PAGES = ("", "looks-imports/change/", "looks-api/change/", "looks-uploads/history/", "confirm")
OURS = ".sync-page"

# What is clipped, or has no colour against what it stands on, of all buttons.
SMALL = """
return [...document.querySelectorAll('.sync-page :is(a, button, input, select, summary)')]
    .filter((e) => e.offsetParent && e.type !== 'hidden')
    .filter((e) => { const r = e.getBoundingClientRect(); return r.height < 24 || r.width < 24; })
    .map((e) => e.outerHTML.slice(0, 120));
"""

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
    """A bit of everything that can be seen."""
    with ExitStack() as stack:
        for _ in range(2):
            asked = Semaphore("looks-imports", 2, timeout=math.inf, label="nightly import")
            stack.enter_context(asked)
        stack.enter_context(Lock("looks-nightly", timeout=math.inf))
        for key in range(7):
            stack.enter_context(Semaphore("looks-api", 3, key=str(key)))
        stack.enter_context(Semaphore("looks-uploads", 4))
        actions.resize("looks-uploads", None, 2)
        actions.pause("looks-uploads", reason="the disk is full")
        assert Semaphore("looks-imports", 2).acquire(blocking=False) is None
        over = threading.Event()
        waiter = threading.Thread(target=_wait, args=(over,))
        waiter.start()
        stack.callback(waiter.join)
        stack.callback(over.set)
        eventually(lambda: listed("looks-nightly", "looks-api@6"))
        yield


def _wait(over: threading.Event) -> None:
    while not over.is_set():
        Semaphore("looks-imports", 2, label="waits").acquire(blocking_timeout=1)


def show(visitor: Visitor, page: str) -> None:
    if page != "confirm":
        visitor.open(page)
        return
    visitor.open("looks-imports/act/pause/")


def violations(visitor: Visitor) -> list[str]:
    """What axe-core finds in our part of the page."""
    source = files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    visitor.browser.execute_script(source)
    found: dict[str, Any] = visitor.browser.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        f"axe.run({OURS!r}).then(done, (error) => done({{violations: [], error: String(error)}}));"
    )
    assert "error" not in found, found
    return [
        f"{one['id']}: {node['target']} {node['failureSummary']}"
        for one in found["violations"]
        for node in one["nodes"]
    ]


def looks(visitor: Visitor, name: str, widths: tuple[int, ...], schemes: tuple[str, ...]) -> None:
    """At these widths and in these colours nothing of ours is wrong."""
    folder = os.environ.get("DJANGO_REDIS_SYNC_SHOTS")
    for page in PAGES:
        show(visitor, page)
        for width in widths:
            for scheme in schemes:
                visitor.show(width, 1600, scheme)
                time.sleep(0.3)  # colours fade in
                if folder:
                    part = page.partition("/")[0] or "list"
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
    looks(manager, "django", (width,), (scheme,))


@pytest.mark.deep
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_have_no_axe_violations_at_any_width(
    manager: Visitor, busy: None, scheme: str
) -> None:
    pytest.importorskip("axe_core_python")
    looks(manager, "django", WIDTHS, (scheme,))


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


def test_phone_list_needs_less_than_a_hundred_pixels_for_a_name(
    manager: Visitor, busy: None
) -> None:
    for n in range(20):
        with Semaphore(f"looks-idle-{n}", 1):
            pass
    eventually(lambda: listed("looks-idle-19"))
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
    """Sites in skins, each started when it is asked for."""
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
    """The manager in front of a site in a skin."""

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
    manager.open("looks-imports/change/")
    fill = "return getComputedStyle(document.querySelector('.sync-area')).fill"
    assert manager.browser.execute_script(fill) not in ("rgb(0, 0, 0)", "none")
    assert [] == manager.browser.execute_script(BUTTONS)
    assert "looks-imports" == manager.text(".sync-title")
    manager.click("#act-pause")
    manager.wait_for(lambda: manager.all("#confirm"))
    assert re.search(r"Now: 2 holders, \d waiting", manager.text(".sync-page"))
    assert [] == manager.browser.execute_script(BUTTONS)
    manager.first("#id_reason").send_keys("tried in a skin")
    manager.click("#confirm")
    manager.wait_for(lambda: manager.all("#act-resume"))
    assert status_is_paused()


def status_is_paused() -> bool:
    from django_redis_sync.operators.status import status_of

    return status_of("looks-imports").paused


@pytest.mark.deep
@pytest.mark.parametrize("skin", SKINS)
def test_pages_have_no_axe_violations_in_a_skin(in_skin: Any, skin: str) -> None:
    pytest.importorskip("axe_core_python")
    looks(in_skin(skin), skin, WIDTHS, ("light",))


def test_english_texts_keep_their_order_from_right_to_left(in_skin: Any) -> None:
    """Nobody translated our texts into Arabic: they are English, and written as English is."""
    manager = in_skin("custom", "ar")
    manager.open("looks-imports/change/")
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
