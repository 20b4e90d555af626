"""Each log message is one line, even if clients, servers, or errors send control characters."""

import logging

import pytest
from django.test import RequestFactory

from django_redis_sync import Semaphore, semaphore_required
from tests.behaviour.both import eventually
from tests.request_site.project import respond_ok
from tests.support.commands import locks

HOSTILE = "/x\r\nCRITICAL root: all is lost\x1b[2J\u2028\u202e"
ESCAPED = "/x\\r\\nCRITICAL root: all is lost\\x1b[2J\\u2028\\u202e"

logger = logging.getLogger("django_redis_sync")


@pytest.mark.parametrize("arg", [HOSTILE, ValueError(HOSTILE)], ids=["str", "error"])
def test_control_characters_in_arguments_of_a_log_call_are_escaped(caplog, arg: object) -> None:
    logger.error("got %s", arg)
    logger.error("got %(value)s", {"value": arg})
    logger.error("%s %r %d %.1f", "Grüße 汉字 \x7f", "it's", 3, 0.25)
    logger.error("%s", "\x1b[2J")
    text = 'Grüße 汉字 \\x7f "it\'s" 3 0.2'
    assert [f"got {ESCAPED}", f"got {ESCAPED}", text, "\\x1b[2J"] == caplog.messages


def test_control_characters_in_the_path_of_a_rejected_request_are_escaped(
    caplog, clean_redis
) -> None:
    caplog.set_level(logging.DEBUG, logger.name)
    request = RequestFactory().get("/")
    request.path = HOSTILE
    clear = lambda _: locks("clear", "logged", "--no-input") and respond_ok(_)  # noqa: E731
    view = semaphore_required("logged", limit=1)(clear)
    with Semaphore("logged", 1):
        assert 503 == view(request).status_code
    assert 200 == view(request).status_code
    eventually(lambda: "lost its permit" in caplog.text)
    assert 2 == sum(ESCAPED in line for line in caplog.messages)
    assert all(line.isprintable() for line in caplog.messages)
