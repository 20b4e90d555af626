"""Requests that stay inside a limited view for as long as a test needs."""

import asyncio
import threading

from asgiref.sync import async_to_sync
from django.http import HttpResponse
from django.test import RequestFactory

from django_redis_sync import semaphore_required


class Visit:
    """A request in its own thread. It stays inside its view until `end()`."""

    def __init__(self, asgi: bool = False, name: str = "one", **options) -> None:
        self.inside, self.leave = threading.Event(), threading.Event()
        self.status: int | None = None
        decorate = semaphore_required(name, **{"limit": 1, **options})

        def body(request) -> HttpResponse:
            self.inside.set()
            self.leave.wait(60)
            return HttpResponse()

        async def abody(request) -> HttpResponse:
            return await asyncio.to_thread(body, request)

        self.view = async_to_sync(decorate(abody)) if asgi else decorate(body)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.status = self.view(RequestFactory().get("/")).status_code

    def end(self) -> int | None:
        self.leave.set()
        self.thread.join(60)
        return self.status
