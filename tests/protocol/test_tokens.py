"""Tokens are secrets: error pages and mails of Django show them shortened."""

import re
from typing import Any

import pytest
import redis
from django.views.debug import ExceptionReporter

from django_redis_sync import LeaseLost, Lock, SyncError, Unavailable
from django_redis_sync.protocol.keys import Token
from django_redis_sync.protocol.renewals import Grant
from tests.support.commands import locks


def after_a_loss(method: str) -> None:
    with Lock("secret") as lease:
        locks("clear", "secret", "--no-input")
        getattr(lease, method)()


@pytest.mark.promise(28)
@pytest.mark.parametrize("debug", [False, True], ids=["mail", "page"])
@pytest.mark.parametrize(
    ("error", "call"),
    [
        (LeaseLost, lambda: after_a_loss("check")),
        (LeaseLost, lambda: after_a_loss("renew")),
        (Unavailable, lambda: Lock("secret", using="gone").acquire()),
    ],
    ids=["check", "renew", "acquire"],
)
def test_error_page_contains_only_shortened_tokens(
    raw: redis.Redis, settings: Any, debug: bool, error: type[SyncError], call: Any
) -> None:
    settings.DEBUG = debug
    gone = {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {**settings.CACHES, "gone": gone}
    with pytest.raises(error) as raised:
        call()
    reporter = ExceptionReporter(None, raised.type, raised.value, raised.tb)
    page = reporter.get_traceback_html()
    assert len(page) > 1000
    assert [] == re.findall(r"\b[0-9a-f]{32}\b", page)


def test_repr_of_a_grant_contains_the_shortened_token() -> None:
    grant = Grant(Token("0123456789abcdef"), 1, 1, 0.0, 0.0, 0.0, False)
    assert "token='01234567…'" in repr(grant)
