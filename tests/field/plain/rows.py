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
_ONE = {"proof": "limits_one_request"}
_CSRF = {
    **_ONE,
    "arguments": {"method": "POST"},
    "settings": {"MIDDLEWARE": ["django.middleware.csrf.CsrfViewMiddleware", LIMITS]},
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
    Row("`Feed()`", path="feed/", **_ONE),
    Row("`functools.partial` of a view", path="partial/", **_ONE),
    Row("`async_to_sync` of a view", path="to_sync/", **_ONE),
    Row("`async_to_sync` of a view", path="to_sync/", server="ASGI", **_ONE),
    Row("class method", path="classmethod/", **_ONE),
    Row("method of an instance", path="method/", **_ONE),
    Row("mixin on a `csrf_exempt` view, `POST`", path="exempt/", **_CSRF),
]
