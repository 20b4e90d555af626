"""The base class of adapters: one page of code for each lock, in Python or as a program.

docs/exam-adapters.md shows how to write one. A worker makes an adapter and calls it from one
thread; where a fault needs more threads, each thread has an adapter of its own.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from .checker import Claims

#: The lease in seconds, for locks that let their users choose it.
LEASE = 2.0
#: Every claim but `within`.
ALL = Claims(
    lease=LEASE, renewed=True, fair=True, fenced=True, told=True, punctual=True, retries=True,
    forks=True,
)  # fmt: skip


class Lost(Exception):
    """Release said that the lock is no longer held. Adapters raise it."""


@dataclass(frozen=True)
class Place:
    """Where an adapter finds what its lock needs."""

    url: str = ""  # of a Redis server
    urls: tuple[str, ...] = ()  # of three, if `needs` is "quorum"
    service: str = ""  # what `service()` yielded
    folder: str = ""  # of this trial
    name: str = "exam"
    limit: int = 1
    lease: float = LEASE


class Adapter:
    """One lock, as the exam uses it.

    title     its name in the table
    claims    what its own documentation promises
    quotes    the sentence behind each claim
    source    where they stand, with the version that was read
    needs     "redis" (one server), "quorum" (three), or "" (none)
    limit     the limit at which it is examined: 2 for semaphores
    module    what has to be installed; `package`: its distribution, whose version is shown
    cannot    faults that can't be put to it, with the reason
    """

    title = ""
    claims: ClassVar[Claims] = Claims()
    quotes: ClassVar[dict[str, str]] = {}
    source = ""
    needs = "redis"
    limit = 1
    module = ""
    package = ""
    cannot: ClassVar[dict[str, str]] = {}

    def __init__(self, place: Place) -> None:
        self.place = place

    def acquire(self, wait: float) -> Any:
        """Return a grant for `release()`, or None if there is none within `wait` seconds."""
        raise NotImplementedError

    def release(self, grant: Any) -> None:
        """Release a grant. Raise Lost if the lock says that it is no longer held."""
        raise NotImplementedError

    def held(self, grant: Any) -> bool:
        """Return what the lock says, locally and at once. Only called if it claims `told`."""
        return True

    def fence(self, grant: Any) -> float | None:
        """Return the number of the grant. Only called if the lock claims `fenced`."""
        return None

    async def aacquire(self, wait: float) -> Any:
        """Async version of `acquire()`, for locks that have one: for the fault `loop-ended`."""
        raise NotImplementedError

    @property
    def library(self) -> Any:
        """The module that `module` names, imported at its first use."""
        return importlib.import_module(self.module)

    # Of the class

    @classmethod
    @contextlib.contextmanager
    def service(cls, folder: str) -> Iterator[str]:
        """Run what else the lock needs during a trial, and yield its address."""
        yield ""

    @classmethod
    def promises(cls) -> Claims:
        return replace(cls.claims, limit=cls.limit)

    @classmethod
    def is_async(cls) -> bool:
        return cls.aacquire is not Adapter.aacquire

    @classmethod
    def missing(cls) -> str:
        """Return why it can't be examined here; empty if it can."""
        if cls.module and importlib.util.find_spec(cls.module) is None:
            return f"{cls.package or cls.module} is not installed"
        return ""

    @classmethod
    def version(cls) -> str:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError, ValueError):
            return importlib.metadata.version(cls.package or cls.module)
        return ""


@contextlib.contextmanager
def lost_if(*errors: type[Exception]) -> Iterator[None]:
    """Raise Lost in place of the errors by which a library says so."""
    try:
        yield
    except errors as error:
        raise Lost(str(error)) from error


def poll(once: Callable[[], Any], wait: float, pause: float = 0.02) -> Any:
    """Call `once()` until it returns more than None or `wait` seconds are over."""
    end = time.monotonic() + wait
    while True:
        answer = once()
        if answer is not None or time.monotonic() + pause > end:
            return answer
        time.sleep(pause)


class Program(Adapter):
    """A lock in any language: `command` reads a JSON line and answers with one.

        {"do": "open", "url": ..., "name": ..., "limit": ..., "lease": ...}   -> {}
        {"do": "acquire", "wait": 5.0}   -> {"grant": ..., "fence": 7}, or {"grant": null}
        {"do": "held", "grant": ...}     -> {"held": true}
        {"do": "release", "grant": ...}  -> {}, or {"lost": "why"}

    {"error": "text"} anywhere is an error of the lock. The program is killed, stopped and forked
    with its worker, and should end when its input does.
    """

    command: ClassVar[list[str]] = []

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self.command, stdin=pipe, stdout=pipe, text=True)
        self._fence: float | None = None
        where = {"url": place.url, "urls": place.urls, "folder": place.folder}
        self._do("open", name=place.name, limit=place.limit, lease=place.lease, **where)

    def _do(self, what: str, **words: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": what, **words}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline() or '{"error": "ended"}')
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def acquire(self, wait: float) -> Any:
        answer = self._do("acquire", wait=wait)
        self._fence = answer.get("fence")
        return answer["grant"]

    def release(self, grant: Any) -> None:
        if lost := self._do("release", grant=grant).get("lost"):
            raise Lost(lost)

    def held(self, grant: Any) -> bool:
        return bool(self._do("held", grant=grant)["held"])

    def fence(self, grant: Any) -> float | None:
        return self._fence


def find(key: str) -> type[Adapter]:
    """Return an adapter by its name in the list, as "module:Class", or as "control:name"."""
    from .adapters import ADAPTERS

    module, _, name = ADAPTERS.get(key, key).partition(":")
    if module == "control":
        from .controls import CONTROLS, RIGHT

        return {**RIGHT, **CONTROLS}[name]
    if not name:
        raise LookupError(f"{key} is neither in the list nor module:Class")
    found: type[Adapter] = getattr(importlib.import_module(module), name)
    return found
