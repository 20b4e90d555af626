"""Rows of Django's own views."""

from tests.field.row import LIMITS, Row

TITLE = "Django"
PACKAGES: list[str] = []
_ATOMIC = {"proof": "sells_each_ticket_once", "transaction": "`ATOMIC_REQUESTS`"}
# Django does not allow ATOMIC_REQUESTS for async views.
_TICKETS = {"proof": "sells_each_ticket_once"}
_OWN = {**_TICKETS, "transaction": "`atomic()` in the view", "settings": {"ATOMIC_REQUESTS": False}}
_AROUND = {
    **_TICKETS,
    "transaction": "`atomic()` in a middleware",
    "settings": {"ATOMIC_REQUESTS": False, "MIDDLEWARE": [LIMITS, "tests.field.plain.urls.atomic"]},
}

ROWS = [
    Row("function", path="function/", **_ATOMIC),
    Row("function", path="function/", server="ASGI", **_ATOMIC),
    Row("`get` of a class, request `HEAD`", path="get/", arguments={"method": "HEAD"}, **_ATOMIC),
    Row("`post` of a class", path="post/", **_ATOMIC),
    Row("base's `dispatch`, called by `super()`", path="base/", **_ATOMIC),
    Row("helper method of a class", path="helper/", **_ATOMIC),
    Row("function below a decorator without `functools.wraps`", path="unwrapped/", **_ATOMIC),
    Row("async function", path="async/", server="ASGI", **_OWN),
    Row("async function", path="async/", **_OWN),
    Row("async function", path="bare/", server="ASGI", **_AROUND),
    Row("async function", path="bare/", **_AROUND),
    Row("helper method of a class", path="helper/", **_AROUND),
]
