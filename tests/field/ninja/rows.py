"""Rows of django-ninja."""

from tests.field.row import Row

TITLE = "django-ninja"
PACKAGES = ["django-ninja"]
_TICKETS = {"proof": "sells_each_ticket_once"}
_ATOMIC = {**_TICKETS, "transaction": "`ATOMIC_REQUESTS`"}
# Django does not allow ATOMIC_REQUESTS for async views, and ninja makes all operations of a path
# async if one of them is.
_OWN = {**_TICKETS, "transaction": "`atomic()` in the view", "settings": {"ATOMIC_REQUESTS": False}}

ROWS = [
    Row("operation", path="sync/buy", **_ATOMIC),
    Row("operation", path="sync/buy", server="ASGI", **_ATOMIC),
    Row("`decorate_view`", path="sync/view", **_ATOMIC),
    Row("async operation", path="async/abuy", server="ASGI", **_OWN),
    Row("async operation", path="async/abuy", **_OWN),
    Row("sync operation beside an async one", path="async/both", server="ASGI", **_OWN),
]
