"""Every option once: its type, its default, where it may be given, and why it is there.

A line of a class is an option: `name: Annotated[type, check, Option(default, why)]`; a literal or a
bool is its own check. The class says where the option may be given:

- `Settings`: keys of REDIS_SYNC, in upper case there.
- `Shared`: wherever a semaphore is named, in code or for requests.
- `Named`: in code, and in SEMAPHORES for code that leaves it out.
- `SemaphoreOptions`: in code, as keywords of Semaphore, Lock, RLock, ReadWriteLock, synchronized.
- `RequestOptions`: for requests, and in REQUESTS for requests of which nothing else says it.
- `PolicyOptions`: for requests: in ENDPOINTS, SEMAPHORES, the decorator and the mixin.
- `Entry`: the same with the limit, which the decorator takes as an argument of its own.
- `Requests`: the dict REQUESTS; its additional options hold for a process, not a policy.

`Policy`, the decorator, the mixin, the checks and docs/settings.md are made from this table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from enum import Enum
from types import MappingProxyType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypedDict,
    get_args,
    get_origin,
    get_type_hints,
)
from uuid import UUID

from . import values
from .values import Check

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Option(NamedTuple):
    """`default`: in force where nothing says another. `why`: what the option is for."""

    default: Any
    why: str


Judge = Callable[[Any], bool | Awaitable[bool]]
Limit = int | Callable[[Any], int | Awaitable[int]] | None
#: What code gives as a share; for requests, see Key.
Share = str | int | UUID | date | Enum | None
Key = str | Callable[[Any], str | int | Awaitable[str | int]] | None
RequestShare = str | Callable[[Any], Any] | None


# REDIS_SYNC


@dataclass(frozen=True, slots=True)
class Settings:
    """The keys of REDIS_SYNC, in lower case."""

    enabled: Annotated[
        bool,
        Option(True, "False switches the request limits off; locks and semaphores in code go on."),
    ]
    cache: Annotated[
        str, values.alias, Option("default", "The cache alias whose Redis connection is used.")
    ]
    key_prefix: Annotated[
        str | None,
        values.text,
        Option(None, 'Prefix of all keys; None: "<the alias\'s KEY_PREFIX>:sync", or "sync".'),
    ]
    timeout: Annotated[
        float,
        values.lease,
        Option(30, "Seconds of a lease: a crashed holder's permits come back after so long."),
    ]
    blocking_timeout: Annotated[
        float | None,
        values.not_negative,
        Option(None, "Seconds that code waits for a permit; None: as long as it takes."),
    ]
    max_hold: Annotated[
        float | None,
        values.lease,
        Option(
            None, "Seconds after which a lease is renewed no more; None: while its holder lives."
        ),
    ]
    requests: Annotated[
        Mapping[str, Any], values.mapping, Option(NOTHING, "What request limits start from.")
    ]
    semaphores: Annotated[
        Mapping[str, Mapping[str, Any]],
        values.mapping,
        Option(NOTHING, 'Named semaphores: `{"exports": {"limit": 3}}`.'),
    ]
    endpoints: Annotated[
        Mapping[str, str | Mapping[str, Any]],
        values.mapping,
        Option(
            NOTHING,
            'Limits by view name or glob: `{"reports:export": "exports", "api:*": {"limit": 20}}`.',
        ),
    ]
    stats: Annotated[
        bool, Option(True, "Counters and history, written by the scripts that run anyway.")
    ]
    stats_hours: Annotated[
        float,
        values.hours,
        Option(
            24,
            "Hours of history: by the minute for the last two hours, by the quarter hour before.",
        ),
    ]
    async_client: Annotated[
        str | None,
        values.text,
        Option(
            None,
            "Dotted path of a callable alias -> redis.asyncio client, when ours can't be rebuilt.",
        ),
    ]
    error_responses: Annotated[
        bool,
        Option(True, "The middleware answers 503 if a view raises NotAcquired or Unavailable."),
    ]


# Semaphores, in code and for requests


class Shared(TypedDict, total=False):
    timeout: Annotated[
        float | None,
        values.lease,
        Option(None, "Seconds of a lease; None: TIMEOUT, renewed while the holder lives."),
    ]
    min_hold: Annotated[
        float | None,
        values.positive,
        Option(None, "Seconds for which the permits stay taken, however early they are released."),
    ]


class Named(Shared, total=False):
    blocking_timeout: Annotated[
        float | None,
        values.not_negative,
        Option(None, "Seconds to wait for a permit; None: BLOCKING_TIMEOUT."),
    ]
    max_hold: Annotated[
        float | None,
        values.positive,
        Option(None, "Seconds after which a lease is renewed no more; None: MAX_HOLD."),
    ]


class SemaphoreOptions(Named, total=False):
    blocking: Annotated[bool, Option(True, "False tries once, as a blocking_timeout of 0 does.")]
    renew: Annotated[
        bool | None,
        Option(None, "Renew a lease of a given timeout too, or not; None: only one of TIMEOUT."),
    ]
    fair: Annotated[bool, Option(True, "First come, first served.")]
    using: Annotated[
        str | Sequence[str] | None,
        values.anything,
        Option(None, "A cache alias; of a Lock also a list of them, a quorum. None: CACHE."),
    ]
    label: Annotated[str | None, values.text, Option(None, "What operators see beside the host.")]
    on_lost: Annotated[
        Callable[[Any], Any] | None,
        values.anything,
        Option(None, "Called with the lease when it is lost, on a thread of its own."),
    ]
    thread_local: Annotated[
        bool, Option(True, "`release` knows the leases of this thread or task only.")
    ]
    raise_on_release_error: Annotated[
        bool, Option(True, "Leaving a `with` whose lease is over raises; False logs a warning.")
    ]
    release_on_commit: Annotated[
        bool | str,
        values.anything,
        Option(
            False, "Inside a transaction, give back when that ends; an alias: of that database."
        ),
    ]
    sleep: Annotated[
        float | None,
        values.anything,
        Option(None, "Accepted for redis-py's sake: waiting takes no polling."),
    ]
    key: Annotated[str | None, values.text, Option(None, "A child of the name, as policies make.")]
    share: Annotated[
        Share,
        values.anything,
        Option(None, "Which share of the name takes the permits; shares take turns."),
    ]
    share_limit: Annotated[
        int | None, values.whole, Option(None, "Max permits that one share has at a time.")
    ]


class RequestOptions(Shared, total=False):
    methods: Annotated[
        Iterable[str] | None,
        values.methods,
        Option(None, "The HTTP methods that count, HEAD with GET; None: all that reach the view."),
    ]
    when: Annotated[
        str | Judge | None,
        values.function,
        Option(None, "A callable request -> bool, or its path: whether a request counts."),
    ]
    blocking_timeout: Annotated[
        float,
        values.ending,
        Option(
            0, "Seconds that a request may wait: it holds a worker meanwhile. 0: refused at once."
        ),
    ]
    max_waiters: Annotated[
        int,
        values.count,
        Option(100, "How many requests may wait for a permit of the same name and key."),
    ]
    max_hold: Annotated[
        float | None,
        values.positive,
        Option(3600, "Seconds after which a hung request's permit is renewed no more."),
    ]
    fair: Annotated[bool, Option(True, "First come, first served.")]
    on_outage: Annotated[
        Literal["local", "open", "closed"],
        Option(
            "local", "Redis down: local keeps a limit per process, open lets all in, closed none."
        ),
    ]
    status: Annotated[
        int | None,
        values.status,
        Option(None, "HTTP status of a refusal; None: 503, or 429 with a key."),
    ]
    on_full: Annotated[
        Literal["response", "raise"],
        Option("response", "What a refused request gets: a response, or raise NotAcquired."),
    ]
    response: Annotated[
        str | Callable[[Any, Any], Any] | None,
        values.function,
        Option(
            None,
            "Makes the response to a refused request: a callable (request, said), or its path.",
        ),
    ]
    enforce: Annotated[
        bool, Option(True, "False: shadow mode, counts the requests it would refuse, refuses none.")
    ]
    trusted_proxies: Annotated[
        int,
        values.count,
        Option(0, "How many proxies of yours append to X-Forwarded-For, which can be forged."),
    ]
    ipv6_prefix: Annotated[
        int,
        values.prefix,
        Option(
            64, "How many bits of an IPv6 address are one client: 64 for most, 56 or 48 for some."
        ),
    ]


class PolicyOptions(RequestOptions, total=False):
    key: Annotated[
        Key,
        values.key,
        Option(
            None, 'A semaphore for each value: "user", "ip", a callable request -> str, its path.'
        ),
    ]
    share: Annotated[
        RequestShare,
        values.key,
        Option(
            None,
            'The share of a request: "user", "ip", a callable request -> str, its path. Shares '
            "of a name take turns; all requests without one are one share.",
        ),
    ]
    share_limit: Annotated[
        Limit,
        values.limit,
        Option(
            None,
            "Max permits of each share: an int, or a callable request -> int. None: only turns.",
        ),
    ]
    using: Annotated[str | None, values.alias, Option(None, "A cache alias; None: CACHE.")]


class Entry(PolicyOptions, total=False):
    limit: Annotated[
        Limit,
        values.limit,
        Option(None, "How many at the same time: an int, or a callable request -> int."),
    ]


class Requests(RequestOptions, total=False):
    """The dict REQUESTS."""

    max_waiting_threads: Annotated[
        int | Literal["auto"] | None,
        values.waiting,
        Option(
            "auto",
            "How many threads of a process may wait at a time, over all limits: a waiting thread "
            "answers no other request. auto: half of gunicorn's threads; 20 for sync views under "
            "ASGI, where each request has its own thread; else 2. None: any number.",
        ),
    ]
    max_waiting_tasks: Annotated[
        int | None,
        values.count,
        Option(1000, "The same for async views, whose waiting keeps no thread; None: any."),
    ]


# Reading the table


class Row(NamedTuple):
    """An option. `kind`: its type; `check`: brings a value into the form that is kept."""

    name: str
    kind: Any
    default: Any
    why: str
    check: Check

    def checked(self, value: Any) -> Any:
        """The value in the form that is kept. TypeError or ValueError when it has none."""
        absent = value is None and type(None) in get_args(self.kind)
        return None if absent else self.check(self.name, value)

    @property
    def path(self) -> bool:
        """Whether a str with a dot is the path of the value."""
        return self.check in (values.key, values.function)


def table(options: Any) -> Mapping[str, Row]:
    """The options of a class above, by name."""
    hints = get_type_hints(options, include_extras=True)
    return MappingProxyType({name: _row(name, *get_args(hint)) for name, hint in hints.items()})


def _row(name: str, kind: Any, *extras: Any) -> Row:
    option = extras[-1]
    implied = values.one_of(*get_args(kind)) if get_origin(kind) is Literal else values.flag
    return Row(name, kind, option.default, option.why, extras[0] if extras[1:] else implied)


SETTINGS = table(Settings)
NAMED = table(Named)
SEMAPHORE = table(SemaphoreOptions)
REQUESTS = table(Requests)
ENTRY = table(Entry)
