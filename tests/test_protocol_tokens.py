"""Tokens are secrets: error pages and mails of Django show them shortened."""

from typing import Any

import pytest
import redis
from django.views.debug import ExceptionReporter

from django_redis_sync import LeaseLost, Lock, SyncError, Unavailable
from django_redis_sync.locks import options
from django_redis_sync.operators import actions
from django_redis_sync.operators.status import status_of
from django_redis_sync.protocol.plans import Grant


def failing(lock: Lock, alias: str) -> list[BaseException]:
    """Return errors of the library, raised while a local variable holds a token."""
    errors: list[BaseException] = []

    def view(function: Any) -> None:
        try:
            function()
        except SyncError as error:
            errors.append(error)

    def lost() -> None:
        with lock as lease:
            actions.clear(found := status_of(lock.name), [found.holders[0].id])
            lease.check()

    def renewed() -> None:
        with lock as lease:
            actions.clear(found := status_of(lock.name), [found.holders[0].id])
            lease.renew()

    view(lost)
    view(renewed)
    view(lambda: Lock(lock.name, using=alias).acquire())
    return errors


@pytest.mark.parametrize("level", [False, True], ids=["mail", "page"])
def test_error_page_contains_only_shortened_tokens(
    raw: redis.Redis, settings: Any, monkeypatch: pytest.MonkeyPatch, level: bool
) -> None:
    settings.DEBUG = level
    settings.CACHES = {
        **settings.CACHES,
        "gone": {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"},
    }
    tokens: list[str] = []
    made = options._token
    monkeypatch.setattr(options, "_token", lambda: tokens.append(str(got := made())) or got)
    errors = failing(Lock("secret"), "gone")
    assert [LeaseLost, LeaseLost, Unavailable] == [type(error) for error in errors]
    assert 3 == len(tokens)
    for error in errors:
        reporter = ExceptionReporter(None, type(error), error, error.__traceback__)
        page = reporter.get_traceback_html()
        assert 1000 < len(page)

        assert [] == [token for token in tokens if token in page]
    grant = Grant(made(), 1, 1, 0.0, 0.0, 0.0, False)
    assert f"token='{grant.token[:8]}…'" in repr(grant)
