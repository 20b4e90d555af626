"""The steps a request's plan may wait for, and how sync and async code carry them out."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Protocol

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.http import HttpRequest

from ..locks.lease import Lease
from ..protocol.plans import Refusal
from ..signals import acquire_rejected
from . import identity
from .holding import Hold
from .policy import Policy


class Step(Protocol):
    """Something to do that may have to wait."""

    def do(self) -> Any: ...
    async def ado(self) -> Any: ...


Plan = Generator[Step, Any, Any]


def run(plan: Plan, first: Any = None) -> Any:
    """Carry a plan out in sync code. `first`: what its first step came to, which was made already:
    its value, or the exception that it raised."""
    try:
        step = next(plan)
        if first is not None:
            step = _told(plan, first)
        while True:
            try:
                value = step.do()
            except BaseException as error:
                step = plan.throw(error)
            else:
                step = plan.send(value)
    except StopIteration as stop:
        return stop.value


async def arun(plan: Plan, first: Any = None) -> Any:
    """As run, in async code."""
    try:
        step = next(plan)
        if first is not None:
            step = _told(plan, first)
        while True:
            try:
                value = await step.ado()
            except BaseException as error:
                step = plan.throw(error)
            else:
                step = plan.send(value)
    except StopIteration as stop:
        return stop.value


def _told(plan: Plan, first: Any) -> Step:
    return plan.throw(first) if isinstance(first, BaseException) else plan.send(first)


# Steps


@dataclass(frozen=True, slots=True)
class Call:
    """A project's own callable. It may touch the database: async code gives a sync one a thread."""

    function: Any
    request: Any

    def do(self) -> Any:
        value = self.function(self.request)
        return async_to_sync(_awaited)(value) if isawaitable(value) else value

    async def ado(self) -> Any:
        if iscoroutinefunction(self.function):
            return await self.function(self.request)
        value = await sync_to_async(self.function)(self.request)
        return await value if isawaitable(value) else value


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


class ForRequests(Protocol):
    """A semaphore as requests take it."""

    def take_for(self, request: HttpRequest, blocking: bool) -> Lease | Refusal: ...
    async def atake_for(self, request: HttpRequest, blocking: bool) -> Lease | Refusal: ...


@dataclass(frozen=True, slots=True)
class Take:
    """A lease, or a Refusal."""

    semaphore: ForRequests
    request: HttpRequest
    blocking: bool

    def do(self) -> Lease | Refusal:
        return self.semaphore.take_for(self.request, self.blocking)

    async def ado(self) -> Lease | Refusal:
        return await self.semaphore.atake_for(self.request, self.blocking)


@dataclass(frozen=True, slots=True)
class Release:
    hold: Hold

    def do(self) -> None:
        self.hold.release()

    async def ado(self) -> None:
        await self.hold.arelease()


@dataclass(frozen=True, slots=True)
class Reject:
    """Tell the receivers of acquire_rejected."""

    said: dict[str, Any]

    def do(self) -> None:
        acquire_rejected.send_robust(Policy, **self.said)

    async def ado(self) -> None:
        await acquire_rejected.asend_robust(Policy, **self.said)


@dataclass(frozen=True, slots=True)
class User:
    """The primary key of the request's user, None when anonymous."""

    request: Any

    def do(self) -> Any:
        return identity.user_of(self.request).pk

    async def ado(self) -> Any:
        # Django REST framework's request has a user of its own, and Django's auser.
        if isinstance(self.request, HttpRequest) and hasattr(self.request, "auser"):
            return (await self.request.auser()).pk
        return await sync_to_async(self.do)()
