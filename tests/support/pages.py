"""Helpers that log in to the Django admin, and read its pages."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

from django.contrib.auth.models import Permission, User
from django.test import Client, override_settings

from tests.behaviour.both import eventually

LIST = "/admin/django_redis_sync/name/"
VOID = ("br", "hr", "img", "input", "link", "meta")
BLOCKS = ("h1", "h2", "p", "ul", "li", "table", "tr", "div", "dl", "section", "form", "summary")
REFERRING = ("for", "form", "aria-labelledby", "aria-describedby", "aria-controls")


def client_of(*codenames: str, **options: bool) -> Client:
    """Return a test client that is logged in as a staff user with these permissions."""
    name = "-".join(codenames) or "no-permission"
    user, _ = User.objects.get_or_create(username=name, is_staff=True)
    user.set_password("right")
    user.save()
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client(**options)
    client.force_login(user)
    return client


def unreachable_redis() -> override_settings:
    """Return settings with a cache whose Redis server is down."""
    location = "redis://:hunter2@127.0.0.1:1/0"  # no server listens on port 1
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location}
    return override_settings(CACHES={"default": cache})


class Page(HTMLParser):
    """The part of a page that this project writes, and the ids and links of the whole page.

    `text`: the visible text. `lines`: the visible text with a line for each block, and with the
    targets of links and the values of inputs. `cells`: the text of each table cell, by the id of
    its row and the label of its column. `parts`: the text of each element with an id, by the id.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html, self.ids, self.links = html, list[str](), list[str]()
        self.referred, self.parts, self.lines = set[str](), dict[str, str](), list[str]()
        self.cells: dict[str, dict[str, str]] = {}
        self.open: list[tuple[str, dict[str, str], list[str]]] = []
        self.feed(html)
        assert not self.open, f"never closed: {self.open}"
        self.text = " ".join(re.sub(r"\]\([^)]*\)|[\[\]|]", " ", " ".join(self.lines)).split())

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        given = {name: " ".join((value or "").split()) for name, value in attrs}
        self.ids += [given["id"]] if "id" in given else []
        self.referred.update(id for name in REFERRING for id in given.get(name, "").split())
        self.links += [given["href"]] if tag == "a" else []
        if self.open or "sync-page" in given.get("class", "").split():
            if tag not in VOID:
                self.open.append((tag, given, []))
            elif given.get("type") != "hidden":
                value = given.get("value", "")
                self.open[-1][2].append(f" [{value}] " if tag == "input" else " ")

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_data(self, data: str) -> None:
        if self.open:
            self.open[-1][2].append(data)

    def handle_endtag(self, tag: str) -> None:
        if not self.open:
            return
        opened, given, parts = self.open.pop()
        assert tag == opened, f"</{tag}> closes {opened}"
        text = "".join(parts)
        plain = " ".join(text.split())
        if "id" in given:
            self.parts[given["id"]] = plain
        if tag in ("td", "th"):
            if row := self.open[-1][1].get("id"):
                self.cells.setdefault(row, {})[given.get("data-label", "")] = plain
            text = f"{given.get('data-label', '')}: {plain} | ".removeprefix(": ")
        elif tag == "tr":
            text = " ".join(text.split()).removesuffix(" |")
        elif tag == "a":
            text = f" [{plain}]({given.get('href')}) "
        elif tag == "svg" and "aria-label" in given:
            text = f" ({given['aria-label']}) "
        elif tag in ("h1", "h2"):
            text = f"\n{'#' * int(tag[1])} {plain}"
        if tag in BLOCKS:
            text = f"\n{text}\n"
        if self.open:
            self.open[-1][2].append(f" {text} " if tag in ("dt", "option", "span", "bdi") else text)
        else:
            self.lines += [line for each in text.splitlines() if (line := " ".join(each.split()))]


def get(client: Client, address: str = "", status: int = 200, **options: Any) -> Page:
    """Request an admin page, check the status of the response, and return the page.

    `address`: a path that begins with "/", or a path below LIST."""
    response = client.get(address if address.startswith("/") else LIST + address, **options)
    assert status == response.status_code, response.content.decode()[-2000:]
    return Page(response.content.decode())


def get_list(client: Client, *ids: str, query: str = "") -> Page:
    """Wait until the list page has rows with these ids, and return the page.

    The wait is necessary because a process registers the names that it uses in the background."""
    return eventually(lambda: (page := get(client, query)) and {*ids} <= {*page.cells} and page)
