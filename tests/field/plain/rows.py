"""Rows of Django's own views."""

from tests.field.row import Row

TITLE = "Django"
PACKAGES: list[str] = []
SETTINGS = {"INSTALLED_APPS": ["django.contrib.syndication"]}
_ATOMIC = {"proof": "sells_each_ticket_once", "transaction": "`ATOMIC_REQUESTS`"}

ROWS = [
    Row("function", path="function/", **_ATOMIC),
    Row("function", path="function/", server="ASGI", **_ATOMIC),
    Row("`post` of a class", path="post/", **_ATOMIC),
]
