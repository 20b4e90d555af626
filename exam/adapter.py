"""The base class of adapters. An adapter connects a lock to the exam. docs/exam-adapters.md shows
how to write an adapter, in Python or as a program in any language."""

from __future__ import annotations

import configparser
import contextlib
import importlib
import importlib.metadata
import importlib.util
import json
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .checker import Promises

#: Lease duration in seconds in the exam, for locks whose users can choose the duration.
LEASE = 2.0
#: The promises of a lock that promises everything except `max_wait`.
ALL = Promises(
    lease=LEASE, renewed=True, fair=True, fenced=True, reports_loss=True, punctual=True,
    retries=True, forks=True,
)  # fmt: skip


class Lost(Exception):
    """Raised by `Adapter.release()` if the lock reports that the caller no longer holds it."""


@dataclass(frozen=True)
class Place:
    """The arguments of an adapter: addresses of servers, and the lock's name, limit, and lease."""

    url: str = ""  # address of the Redis server
    urls: tuple[str, ...] = ()  # addresses of three Redis servers, if `needs` is "quorum"
    service: str = ""  # address of the server that `Adapter.service()` runs
    folder: str = ""  # a folder that only this trial uses
    name: str = "exam"
    limit: int = 1
    lease: float = LEASE


class Adapter:
    """A lock that the exam examines. Each worker process makes an adapter for its main thread. If a
    fault needs more threads, each of them makes an adapter, unless `shared` is True."""

    title = ""  # the name of the lock in the table
    promises = Promises()  # what the documentation of the lock promises
    quotes: dict[str, str] = {}  # promise -> the sentence of the lock's documentation that makes it
    source = ""  # address of the documentation, and the library's version
    needs = "redis"  # "redis": one server; "quorum": three servers; "": no server
    limit = 1  # the limit that the exam uses; adapters of semaphores set it to 2
    module = ""  # the Python module that has the lock
    package = ""  # the distribution of `module`, if it has another name
    shared = False  # True if all threads of a process use the same adapter
    cannot: dict[str, str] = {}  # fault that can't be tried on the lock -> the reason

    def __init__(self, place: Place) -> None:
        self.place = place

    def acquire(self, wait: float) -> Any:
        """Return a grant for `release()`, or None if the lock is not free within `wait` seconds."""
        raise NotImplementedError

    def release(self, grant: Any) -> None:
        """Release a grant. Raise Lost if the lock reports that the caller no longer holds it."""
        raise NotImplementedError

    def held(self, grant: Any) -> bool:
        """Return True if the lock is held, as far as this process knows without asking the server.
        The exam calls this method only if the lock promises `reports_loss`."""
        return True

    def fence(self, grant: Any) -> float | None:
        """Return the fencing token of the grant, if the lock promises `fenced`. Otherwise, the exam
        does not call this method."""
        return None

    async def aacquire(self, wait: float) -> Any:
        """Async version of `acquire()`, if the lock has one."""
        raise NotImplementedError

    @property
    def library(self) -> Any:
        """The module of the lock. It is imported at the first use of this property."""
        return importlib.import_module(self.module)

    @classmethod
    @contextlib.contextmanager
    def service(cls, folder: str) -> Iterator[str]:
        """If the lock needs a server besides Redis, run it during the `with` block. Yield the
        server's address, or ""."""
        yield ""

    @classmethod
    def missing(cls) -> str:
        """Return why the lock can't be examined on this machine, or "" if it can."""
        if cls.module and importlib.util.find_spec(cls.module) is None:
            return f"{cls.package or cls.module} is not installed"
        return ""

    @classmethod
    def version(cls) -> str:
        """Return the name and version of the distribution, or "" if they are unknown."""
        name = cls.package or cls.module
        with contextlib.suppress(importlib.metadata.PackageNotFoundError, ValueError):
            return f"{name} {importlib.metadata.version(name)}"
        return ""


@contextlib.contextmanager
def lost_if(*errors: type[Exception]) -> Iterator[None]:
    """Raise Lost if the `with` block raises one of `errors`, which report that a lock is lost."""
    try:
        yield
    except errors as error:
        raise Lost(str(error)) from error


def poll(once: Callable[[], Any], wait: float, pause: float = 0.02) -> Any:
    """Repeat `once()` for up to `wait` seconds, until its result is not None. Return the result."""
    end = time.monotonic() + wait
    while (answer := once()) is None and time.monotonic() + pause <= end:
        time.sleep(pause)
    return answer


class Program(Adapter):
    """A lock in any language. `command` starts a program. The program reads one request per line,
    and prints one answer per line, both in JSON:

        {"do": "open", "url": ..., "name": ..., "limit": ..., "lease": ...}   -> {}
        {"do": "acquire", "wait": 5.0}   -> {"grant": ..., "fence": 7}, or {"grant": null}
        {"do": "held", "grant": ...}     -> {"held": true}
        {"do": "release", "grant": ...}  -> {}, or {"lost": "why"}

    The answer {"error": "text"} means that the lock raised an error. If the exam kills or stops a
    worker, it also kills or stops the program. The program should exit when its input ends.
    """

    command: list[str] = []
    _fence: float | None = None

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self.command, stdin=pipe, stdout=pipe, text=True)
        where = {"url": place.url, "urls": place.urls, "folder": place.folder}
        self._do("open", name=place.name, limit=place.limit, lease=place.lease, **where)

    def _do(self, what: str, **words: Any) -> Any:
        print(json.dumps({"do": what, **words}), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline() or '{"error": "ended"}')
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


_table = configparser.ConfigParser(interpolation=None)
_table.read(Path(__file__).with_name("adapters") / "locks.ini", encoding="utf-8")
ADAPTERS = _table.sections()
#: Title of a table of results -> names of the locks in this table.
GROUPS: dict[str, list[str]] = defaultdict(list)
for _key in ADAPTERS:
    GROUPS[_table[_key]["group"]].append(_key)


@cache
def find(key: str) -> type[Adapter]:
    """Return the adapter class of a lock. `key`: the lock's name in locks.ini, "module:Class", or
    "control:NAME" for a lock in controls.py. Raise LookupError for any other key."""
    words: dict[str, Any] = dict(_table[key]) if key in ADAPTERS else {}
    module, _, name = words.get("adapter", key).partition(":")
    if module == "control":
        from .controls import CONTROLS

        return CONTROLS[name]
    if not name:
        raise LookupError(f"{key} is neither a lock in locks.ini nor of the form module:Class")
    if not words:
        return getattr(importlib.import_module(module), name)
    adapter = getattr(importlib.import_module(f".adapters.{module}", __package__), name)
    words |= {each: text.replace("\n", " ") for each, text in words.items() if each != "cannot"}
    names = words.keys() & vars(Promises()).keys() - {"limit"}
    words |= {"quotes": {name: words[name] for name in names}, "limit": int(words.get("limit", 1))}
    words["cannot"] = dict(
        line.split(": ") for line in words.get("cannot", "").strip().splitlines()
    )
    if names and adapter.promises == Promises():
        words["promises"] = Promises(**{name: LEASE if name == "lease" else True for name in names})
    return type(name, (adapter,), words)
