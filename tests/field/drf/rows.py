"""Rows of Django REST framework."""

from tests.field.row import Row

TITLE = "Django REST framework"
PACKAGES = ["djangorestframework"]
SETTINGS = {"INSTALLED_APPS": ["rest_framework"]}
_ATOMIC = {"proof": "sells_each_ticket_once", "transaction": "`ATOMIC_REQUESTS`"}

ROWS = [
    Row("function below `@api_view`", path="below/", **_ATOMIC),
    Row("function below `@api_view`", path="below/", server="ASGI", **_ATOMIC),
    Row("function above `@api_view`", path="above/", **_ATOMIC),
    Row("`ListAPIView.list`", path="list/", arguments={"method": "GET"}, **_ATOMIC),
    Row("`ViewSet.create` in a router", path="sales/", **_ATOMIC),
    Row("`@action` in a router", path="sales/buy/", **_ATOMIC),
    Row("`perform_create`, `Lock` with `release_on_commit`", path="lock/", **_ATOMIC),
    Row("mixin on a `ModelViewSet`", path="mixed/", **_ATOMIC),
    Row("`post` of an `APIView`", path="post/", **_ATOMIC),
]
