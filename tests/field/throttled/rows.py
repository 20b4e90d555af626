"""Rows of ConcurrencyThrottle."""

from tests.field.row import Row

TITLE = "`ConcurrencyThrottle`"
PACKAGES = ["django-ninja", "djangorestframework"]
SETTINGS = {
    "INSTALLED_APPS": ["rest_framework"],
    "REST_FRAMEWORK": {
        "DEFAULT_THROTTLE_CLASSES": ["tests.field.throttled.throttles.Till"],
        "DEFAULT_AUTHENTICATION_CLASSES": [],
        "UNAUTHENTICATED_USER": None,
    },
    "REDIS_SYNC": {"SEMAPHORES": {"till": {"limit": 1}}},
}
_TICKETS = {"proof": "sells_each_ticket_once", "transaction": "`ATOMIC_REQUESTS`"}
_AGAIN = {"asks_again": True}

_VIEWS = {
    "`throttle_classes` of an `APIView`": "class/",
    "`DEFAULT_THROTTLE_CLASSES`, function below `@api_view`": "function/",
    "`DEFAULT_THROTTLE_CLASSES`, `ViewSet.create` in a router": "sales/",
    "`throttle_scope`": "scope/",
    "`throttle=` of an operation of django-ninja": "ninja/buy",
}

ROWS = [
    Row(view, path=path, server=server, arguments=_AGAIN, **_TICKETS)
    for view, path in _VIEWS.items()
    for server in ("WSGI", "ASGI")
]
