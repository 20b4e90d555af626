"""Each log message is one line, even if clients, servers, or errors send control characters."""

import asyncio
import logging

import pytest
from django.http import HttpResponse
from django.test import RequestFactory

from django_redis_sync import Semaphore, semaphore_required
from tests.behaviour.both import eventually
from tests.support.operators import locks

HOSTILE = "/x\r\nCRITICAL root: all is lost\x1b[2J\u2028\u202e"
ESCAPED = "/x\\r\\nCRITICAL root: all is lost\\x1b[2J\\u2028\\u202e"

logger = logging.getLogger("django_redis_sync")


@pytest.fixture
def messages(caplog):
    caplog.set_level(logging.DEBUG, logger.name)
    return lambda: [r.getMessage() for r in caplog.records if r.name == logger.name]


@pytest.mark.parametrize("arg", [HOSTILE, ValueError(HOSTILE)], ids=["str", "error"])
def test_line_breaks_in_arguments_of_a_log_call_are_escaped(messages, arg: object) -> None:
    logger.error("got %s", arg)
    logger.error("got %(value)s", {"value": arg})
    logger.error("%s %r %d %.1f", "Grüße 汉字 \x7f", "it's", 3, 0.25)
    logger.error("%s", "\x1b[2J")
    text = 'Grüße 汉字 \\x7f "it\'s" 3 0.2'
    assert [f"got {ESCAPED}", f"got {ESCAPED}", text, "\\x1b[2J"] == messages()


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
@pytest.mark.usefixtures("clean_redis")
def test_line_breaks_in_the_path_of_a_rejected_request_are_escaped(messages, asgi: bool) -> None:
    def clear(request):
        locks("clear", "logged", "--no-input")
        return HttpResponse()

    async def aclear(request):
        return await asyncio.to_thread(clear, request)

    view = semaphore_required("logged", limit=1)(aclear if asgi else clear)
    request = RequestFactory().get("/")
    request.path = HOSTILE

    def respond():
        return asyncio.run(view(request)) if asgi else view(request)

    with Semaphore("logged", 1):
        assert 503 == respond().status_code
    assert 200 == respond().status_code
    eventually(lambda: any("is lost" in line for line in messages()))
    (rejected,) = [line for line in messages() if line.startswith("rejected ")]
    assert ESCAPED in rejected
    assert all(line.isprintable() for line in messages())
