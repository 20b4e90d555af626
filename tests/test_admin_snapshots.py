"""Four of the admin's pages match their snapshots in `tests/snapshots`.

A snapshot has one line for each element and each text, indented below its parent. It contains the
part of the page that this project writes, without values that differ with each run.
"""

from __future__ import annotations

import math
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from html.parser import HTMLParser
from typing import Any

import pytest
from django.test import Client

from django_redis_sync import Semaphore
from django_redis_sync.console import pages
from django_redis_sync.console.pages import Health
from django_redis_sync.operators import actions
from django_redis_sync.operators.doctor import Finding
from django_redis_sync.operators.statistics import SITE, statistics_of
from django_redis_sync.operators.status import status_of
from tests.behaviour.both import eventually
from tests.support.keepers import fresh_keeper, listed  # noqa: F401 - a fixture
from tests.support.snapshots import as_written

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.usefixtures("clean_redis", "fresh_keeper"),
]

LIST = "/admin/django_redis_sync/name/"
VOID = ("br", "hr", "img", "input", "link", "meta")
#: Values that differ with each run, machine, or version, and their replacements.
CHANGING = {
    r"\w{3,9}\.? \d+, \d{4}, (?:[\d:]+ [ap]\.m\.|noon|midnight)": "DATE",
    r"\b[0-9a-f]{8}\b": "ID",
    r"\b\d{16}\b": "FENCE",
    r"\d{4}-\d\d-\d\d[T ][\d:.+]+": "TIME",
    r"\b\d\d:\d\d(:\d\d)?\b": "TIME",
    r"\b(\d+ min )?[\d.]+ m?s\b": "AGE",
    r"\b\d+\b(?= checks? passed)": "N",
    r'(?<=value=")\w{64}': "CSRF",
    r'( d| points| x)="[^"]+"': r'\1="…"',
    re.escape(os.uname().nodename): "HOST",
    rf"(?<!\w){os.getpid()}(?!\w)": "PID",
}


class Outline(HTMLParser):
    """The lines of the element of class `sync-page`."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.lines, self._open = list[str](), list[str]()
        self.feed(text)
        assert self.lines and not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        given = {name: " ".join((value or "").split()) for name, value in attrs}
        if self._open or "sync-page" in given.get("class", "").split():
            self._write(" ".join([tag, *(f'{name}="{value}"' for name, value in given.items())]))
            if tag not in VOID:
                self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._open:
            assert tag == self._open.pop(), f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if self._open and data.strip():
            self._write(f"“{' '.join(data.split())}”")

    def _write(self, line: str) -> None:
        for pattern, word in CHANGING.items():
            line = re.sub(pattern, word, line)
        self.lines.append("  " * len(self._open) + line)


@pytest.fixture
def busy(clean_redis: None, fresh_keeper: None) -> Iterator[None]:  # noqa: F811
    """A full semaphore with a permanent holder and a waiter, a policy, and an idle name."""
    while time.time() % 60 > 45:  # the pages have a row per minute: finish within one minute
        time.sleep(0.1)

    def wait() -> None:
        with Semaphore("exports", 2, label="<b>", blocking_timeout=60):
            pass

    waiter = threading.Thread(target=wait, name="waiter")
    with ExitStack() as stack:
        stack.callback(waiter.join)
        stack.enter_context(Semaphore("exports", 2, timeout=math.inf, label="nightly"))
        stack.enter_context(Semaphore("exports", 2, label="weekly"))
        stack.enter_context(Semaphore("api", 3, key="7"))
        with Semaphore("idle", 1):
            pass
        waiter.start()
        eventually(lambda: status_of("exports").waiting and listed("exports", "idle", "api@7"))
        eventually(lambda: statistics_of([SITE])[0].waiting and statistics_of(["api"])[0].in_use)
        yield


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize(
    ("name", "address"),
    [("list", ""), ("name", "exports/change/"), ("confirm", "exports/act/pause/?reason=a+%26+b")],
)
def test_page_matches_the_snapshot(
    admin_client: Client, name: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Finding("acl", "error", "Permissions are missing", "Denied: ZADD.", "Grant them.")
    health = Health([problem], [Finding("clock", "ok", "Clocks agree", "")], time.monotonic())
    monkeypatch.setattr(pages, "health", lambda: health)
    as_written(name, Outline(admin_client.get(LIST + address).content.decode()).lines)


def test_history_page_matches_the_snapshot(admin_client: Client) -> None:
    with Semaphore("exports", 2):
        actions.pause("exports", by="cron", reason="the disk <b> is full")
        admin_client.post(f"{LIST}exports/act/resume/", {"reason": "mended"})
    page = admin_client.get(f"{LIST}exports/history/").content.decode()
    as_written("history", Outline(page).lines)
