"""What a request's plan asks a project for, in sync and in async code."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.contrib.auth.models import User as Person
from django.test import RequestFactory

from django_redis_sync.limits.steps import Call, User


async def awaited(request: Any) -> str:
    return f"tenant of {request.path}"


def plain(request: Any) -> str:
    return f"tenant of {request.path}"


@pytest.mark.parametrize("function", [awaited, plain, lambda request: awaited(request)])
def test_a_projects_callable_may_be_of_either_kind(function: Any) -> None:
    step = Call(function, RequestFactory().get("/x/"))
    assert "tenant of /x/" == step.do() == asyncio.run(step.ado())


def test_async_code_asks_django_for_the_user_as_it_wants_to_be_asked() -> None:
    request = RequestFactory().get("/")
    request.user = Person(pk=7)
    assert 7 == User(request).do() == asyncio.run(User(request).ado())

    async def auser() -> Person:
        return Person(pk=8)

    request.auser = auser
    assert 8 == asyncio.run(User(request).ado())
