"""What the exam asks of a lock: a page to write for each, in Python or behind a line protocol.

docs/exam-adapters.md shows how. A worker makes one adapter and calls it from one thread, except
where a fault needs a crowd: then each thread has one of its own.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from .judge import Claims

#: Seconds of a lease in the exam, for those that can be told.
LEASE = 2.0


class Lost(Exception):
    """Release said that what it was given is no longer held. Adapters raise it."""


@dataclass(frozen=True)
class Place:
    """Where a worker finds what its lock needs."""

    url: str = ""  # of a Redis server
    urls: tuple[str, ...] = ()  # of several, for a quorum
    postgres: str = ""
    folder: str = ""  # its own, of this examination
    name: str = "exam"
    limit: int = 1
    lease: float = LEASE


class Adapter:
    """One lock, as the exam uses it: it is made anew for each name, and in each process."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def acquire(self, wait: float) -> Any:
        """What release is to be given, or None when it could not be had within `wait` seconds."""
        raise NotImplementedError

    def release(self, grant: Any) -> None:
        """Give it back. Lost, when the lock says that it was no longer held."""
        raise NotImplementedError

    def held(self, grant: Any) -> bool:
        """What the lock says locally of being held; asked of those that claim `told`."""
        return True

    def fence(self, grant: Any) -> float | None:
        """The grant's number; asked of those that claim `fenced`."""
        return None

    # For locks that have an async face: the fault "loop ended" is put to these only.

    async def aacquire(self, wait: float) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class Entry:
    """A lock on the list of the exam.

    make      the adapter's class, as "module:Class" or itself; words of a program, when a list
    claims    what its own documentation says, for a limit of one
    needs     "redis", "quorum", "postgres", or "" for neither
    module    what has to be installed; `package` names its distribution, whose version is shown
    most      the largest limit that it knows
    prepare   is called once, before the workers are forked
    cannot    faults that can't be put to it, with the reason
    """

    title: str
    make: Any
    claims: Claims = field(default_factory=Claims)
    needs: str = "redis"
    module: str = ""
    package: str = ""
    most: int = 1
    asynchronous: bool = False
    prepare: str = ""
    cannot: dict[str, str] = field(default_factory=dict)

    def for_limit(self, limit: int) -> Claims:
        return replace(self.claims, limit=limit)

    def missing(self) -> str:
        """Why it can't be examined here; empty when it can."""
        if self.module and importlib.util.find_spec(self.module) is None:
            return f"{self.package or self.module} is not installed"
        if self.needs == "postgres":
            from devtools import postgres

            return postgres.reason()
        return ""

    def version(self) -> str:
        try:
            return importlib.metadata.version(self.package or self.module)
        except (importlib.metadata.PackageNotFoundError, ValueError):
            return ""

    def adapter(self, place: Place) -> Adapter:
        if isinstance(self.make, (list, tuple)):
            return Program(place, self.make)
        made: Adapter = _find(self.make)(place)
        return made

    def prepared(self) -> None:
        """What has to be there before the first worker is forked."""
        if self.prepare:
            _find(self.prepare)()
        elif isinstance(self.make, str):
            importlib.import_module(self.make.partition(":")[0])


def _find(what: str | Callable[..., Any]) -> Callable[..., Any]:
    if not isinstance(what, str):
        return what
    module, _, name = what.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


class Program(Adapter):
    """A lock in any language: a program that reads a JSON line and answers with one.

        {"do": "open", "url": ..., "name": ..., "limit": ..., "lease": ...}   -> {}
        {"do": "acquire", "wait": 5.0}   -> {"grant": ..., "fence": 7}, or {"grant": null}
        {"do": "held", "grant": ...}     -> {"held": true}
        {"do": "release", "grant": ...}  -> {}, or {"lost": "why"}

    {"error": "text"} anywhere is an error of the lock. It belongs to its worker: it is killed,
    stopped and forked with it, and should end when its input does.
    """

    def __init__(self, place: Place, words: list[str] | tuple[str, ...] | str) -> None:
        super().__init__(place)
        self._process = subprocess.Popen(
            shlex.split(words) if isinstance(words, str) else list(words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
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
