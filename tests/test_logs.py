"""What is logged: one line each, whatever clients, servers and errors say."""

import asyncio
import logging

import pytest
from django.http import HttpResponse
from django.test import RequestFactory

from django_redis_sync import Semaphore, semaphore_required
from django_redis_sync.operators import actions
from django_redis_sync.operators.status import status_of
from tests.behaviour.both import eventually

HOSTILE = "/x\r\nCRITICAL root: all is lost\x1b[2J\u2028\u202e"

logger = logging.getLogger("django_redis_sync")


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.DEBUG, logger.name)
    return lambda: [r.getMessage() for r in caplog.records if r.name == logger.name]


@pytest.mark.parametrize("arg", [HOSTILE, ValueError(HOSTILE)], ids=["str", "error"])
def test_an_argument_of_a_log_call_makes_no_second_line(said, arg: object) -> None:
    logger.error("it said %s", arg)
    logger.error("it said %(this)s", {"this": arg})
    assert 2 == len(said())
    assert all(line.isprintable() for line in said())
    assert all("\\r\\nCRITICAL" in line for line in said())


def test_what_can_be_shown_is_shown_as_it_is(said) -> None:
    logger.error("%s %r %d %.1f", "Grüße 汉字", "it's", 3, 0.25)
    assert ['Grüße 汉字 "it\'s" 3 0.2'] == said()


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
@pytest.mark.usefixtures("clean_redis")
def test_a_path_writes_no_line_into_the_log(said, asgi: bool) -> None:
    def clear(request):
        shown = status_of("said")
        actions.clear(shown, [shown.holders[0].id])
        return HttpResponse()

    async def aclear(request):
        return await asyncio.to_thread(clear, request)

    view = semaphore_required("said", limit=1)(aclear if asgi else clear)
    request = RequestFactory().get("/")
    request.path = HOSTILE

    def ask():
        return asyncio.run(view(request)) if asgi else view(request)

    with Semaphore("said", 1):
        assert 503 == ask().status_code
    assert 200 == ask().status_code
    eventually(lambda: any("is lost" in line for line in said()), 10)
    (rejected,) = [line for line in said() if line.startswith("rejected ")]
    assert "/x\\r\\nCRITICAL root: all is lost\\x1b[2J\\u2028\\u202e" in rejected
    assert all(line.isprintable() for line in said())
