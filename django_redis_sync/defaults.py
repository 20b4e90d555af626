"""The table of all options: type, check, default, and purpose.

Each attribute of a class is an option: `name: Annotated[type, check, Option(default, why)]`. If the
check is omitted, a bool option must be a bool, and any other option may have any value. The class
of an option determines where the option may be given. In the list below, "in code" means in calls
such as `Semaphore(...)`, and "for requests" means in the limits of views.

- `Settings`: in REDIS_SYNC, in upper case.
- `CommonOptions`: in code and for requests.
- `NamedOptions`: in code. An entry of SEMAPHORES may set the default for code.
- `SemaphoreOptions`: in code, as keywords of Semaphore, Lock, RLock, ReadWriteLock, synchronized.
- `RequestOptions`: for requests. REQUESTS may set the default for all requests.
- `PolicyOptions`: for requests: in ENDPOINTS, SEMAPHORES, the decorator, and the mixin.
- `EntryOptions`: the options of `PolicyOptions`, and the limit. The decorator has a separate
  argument for the limit.
- `Requests`: in REQUESTS. The options that only this class has apply to a process, not to a policy.

`Policy`, the decorator, the mixin, the checks, and docs/settings.md are generated from this table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from enum import Enum
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, get_args, get_type_hints
from uuid import UUID

from . import values

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Option(NamedTuple):
    """The default and the purpose of an option. `default`: the value if no other is given. `why`:
    what the option is for."""

    default: Any
    why: str


Limit = int | Callable[[Any], int | Awaitable[int]] | None
#: The type of the option `share` in code. RequestShare is its type for requests.
Share = str | int | UUID | date | Enum | None
Key = str | Callable[[Any], str | int | Awaitable[str | int]] | None
RequestShare = str | Callable[[Any], Any] | None


# REDIS_SYNC


@dataclass(frozen=True, slots=True)
class Settings:
    """The keys of REDIS_SYNC, in lower case."""

    enabled: Annotated[
        bool, Option(True, "False admits all requests. Locks and semaphores in code still work.")
    ]
    without_redis: Annotated[
        bool,
        Option(
            False,
            "True counts permits in each process, without Redis: for development and tests. "
            "Processes don't see each other's permits, and operators see nothing.",
        ),
    ]
    cache: Annotated[
        str, values.alias, Option("default", "The cache alias with the Redis connection.")
    ]
    key_prefix: Annotated[
        str | None,
        values.text,
        Option(None, 'Prefix of all keys. None: "<the alias\'s KEY_PREFIX>:sync", or "sync".'),
    ]
    timeout: Annotated[
        float,
        values.lease,
        Option(30, "Lease duration in seconds. After a crash, permits become free in this time."),
    ]
    blocking_timeout: Annotated[
        float | None,
        values.not_negative,
        Option(None, "Seconds that code waits for a permit. None: no limit."),
    ]
    max_hold: Annotated[
        float | None,
        values.lease,
        Option(None, "Seconds after the grant at which a renewed lease ends. None: no limit."),
    ]
    requests: Annotated[
        Mapping[str, Any], values.mapping, Option(NOTHING, "Default options of all request limits.")
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
    urlconfs: Annotated[
        Sequence[str],
        values.paths,
        Option(
            (),
            "Further URLconfs that middleware sets as request.urlconf. The system checks and "
            "`filled` examine their views. Settings that end with URLCONF or URLCONFS, and the "
            "hosts of django-hosts, are found without it.",
        ),
    ]
    stats: Annotated[bool, Option(True, "Keep counters and history of each name.")]
    stats_hours: Annotated[
        float,
        values.hours,
        Option(24, "Hours of history, per minute (last two hours) or per 15 minutes (older)."),
    ]
    async_client: Annotated[
        str | None,
        values.text,
        Option(None, "Path of a callable: alias -> redis.asyncio client. None: made from CACHES."),
    ]
    error_responses: Annotated[
        bool,
        Option(True, "The middleware answers 503 if a view raises NotAcquired or Unavailable."),
    ]


# Semaphores, in code and for requests

_Rate = Annotated[
    str | None,
    values.rate,
    Option(None, "Max permits granted in any period: `500/m`, `10/30s` (s, m, h, d). None: any."),
]


class CommonOptions(TypedDict, total=False):
    timeout: Annotated[
        float | None,
        values.lease,
        Option(None, "Lease duration in seconds. None: TIMEOUT, and the lease is renewed."),
    ]
    min_hold: Annotated[
        float | None,
        values.positive,
        Option(None, "Min seconds that permits stay in use, even if they are released sooner."),
    ]


class NamedOptions(CommonOptions, total=False):
    blocking_timeout: Annotated[
        float | None,
        values.not_negative,
        Option(None, "Seconds to wait for a permit. None: BLOCKING_TIMEOUT."),
    ]
    max_hold: Annotated[
        float | None,
        values.positive,
        Option(None, "Seconds after the grant at which a renewed lease ends. None: MAX_HOLD."),
    ]
    rate: _Rate


class SemaphoreOptions(NamedOptions, total=False):
    blocking: Annotated[
        bool,
        values.blocking,
        Option(True, "False: don't wait, as with blocking_timeout=0."),
    ]
    renew: Annotated[
        bool | None, Option(None, "Whether to renew the lease. None: only if no timeout is given.")
    ]
    fair: Annotated[bool, Option(True, "Serve waiters in the order of arrival.")]
    using: Annotated[
        str | Sequence[str] | None,
        Option(None, "A cache alias. A Lock may have a list of aliases, a quorum. None: CACHE."),
    ]
    label: Annotated[str | None, values.text, Option(None, "A text that operators see.")]
    on_lost: Annotated[
        Callable[[Any], Any] | None,
        values.callback,
        Option(None, "A callable that gets the lease if it is lost. It runs on another thread."),
    ]
    thread_local: Annotated[
        bool, Option(True, "`release` releases leases of this thread or task only.")
    ]
    raise_on_release_error: Annotated[
        bool, Option(True, "Raise at the end of a `with` block if the lease was lost. False: log.")
    ]
    release_on_commit: Annotated[
        bool | str,
        values.flag_or_alias,
        Option(False, "Release when open transactions end. A database alias: only that database."),
    ]
    sleep: Annotated[
        float | None,
        values.not_negative,
        Option(None, "Ignored. redis-py's Lock has this option."),
    ]
    key: Annotated[
        str | None,
        values.text,
        Option(None, "A key of the policy, such as a user's pk. Each key has its own semaphore."),
    ]
    share: Annotated[
        Share, Option(None, "The caller's group (share), such as a tenant. Shares take turns.")
    ]
    share_limit: Annotated[
        int | None, values.whole, Option(None, "Max permits of one share. None: no limit.")
    ]


class RequestOptions(CommonOptions, total=False):
    methods: Annotated[
        Iterable[str] | None,
        values.methods,
        Option(None, "HTTP methods to limit. GET includes HEAD. None: all that reach the view."),
    ]
    when: Annotated[
        str | Callable[[Any], bool | Awaitable[bool]] | None,
        values.function,
        Option(None, "A callable request -> bool, or its dotted path: should the limit apply?"),
    ]
    blocking_timeout: Annotated[
        float,
        values.ending,
        Option(0, "Seconds to wait for a permit; 0: don't. A waiting request occupies a worker."),
    ]
    close_connections: Annotated[
        bool,
        Option(
            False,
            "Close the request's database connections when it begins to wait. A pool gets them "
            "back. A connection in a transaction stays open.",
        ),
    ]
    max_waiters: Annotated[
        int, values.count, Option(100, "Max requests that wait for the same name and key.")
    ]
    max_hold: Annotated[
        float | None,
        values.positive,
        Option(3600, "Seconds after the grant at which a request's lease ends."),
    ]
    fair: Annotated[bool, Option(True, "Serve waiters in the order of arrival.")]
    on_outage: Annotated[
        Literal["local", "open", "closed"],
        values.one_of("local", "open", "closed"),
        Option(
            "local",
            'While Redis is down: "local" limits each process, "open" admits all, "closed" none.',
        ),
    ]
    status: Annotated[
        int | None,
        values.status,
        Option(
            None,
            "HTTP status of a rejection. None: 429 if a key, share, or rate is full, else 503.",
        ),
    ]
    on_full: Annotated[
        Literal["response", "raise"],
        values.one_of("response", "raise"),
        Option("response", "Whether a rejected request gets a response or raises NotAcquired."),
    ]
    response: Annotated[
        str | Callable[[Any, Any], Any] | None,
        values.function,
        Option(None, "A callable (request, rejection) -> response, or its dotted path."),
    ]
    enforce: Annotated[
        bool, Option(True, "False: shadow mode. Requests over the limit are admitted and counted.")
    ]
    trusted_proxies: Annotated[
        int,
        values.count,
        Option(0, "Number of your proxies. Other addresses in X-Forwarded-For can be forged."),
    ]
    ipv6_prefix: Annotated[
        int,
        values.prefix,
        Option(64, "Bits of an IPv6 address that identify a client. Some networks need 56 or 48."),
    ]


class PolicyOptions(RequestOptions, total=False):
    key: Annotated[
        Key,
        values.key,
        Option(
            None,
            'The key of a request: "user", "ip", a callable request -> str, or its dotted path. '
            "Each key has its own semaphore.",
        ),
    ]
    share: Annotated[
        RequestShare,
        values.key,
        Option(
            None,
            'The share of a request: "user", "ip", a callable request -> str, or its dotted path. '
            "Shares of a name take turns. All requests without a share are one share.",
        ),
    ]
    share_limit: Annotated[
        Limit,
        values.limit,
        Option(
            None, "Max permits of each share: an int, or a callable request -> int. None: no limit."
        ),
    ]
    rate: _Rate
    using: Annotated[str | None, values.alias, Option(None, "A cache alias. None: CACHE.")]


class EntryOptions(PolicyOptions, total=False):
    limit: Annotated[
        Limit, values.limit, Option(None, "Permits: an int, or a callable request -> int.")
    ]


class Requests(RequestOptions, total=False):
    """The options of the dict REDIS_SYNC["REQUESTS"]."""

    max_waiting_threads: Annotated[
        int | Literal["auto"] | None,
        values.waiting,
        Option(
            "auto",
            "Max threads of a process that wait at a time, for all limits together. A waiting "
            'thread answers no other request. "auto": 20 for sync views under ASGI, where each '
            "request has its own thread, else 2. None: no limit.",
        ),
    ]
    max_waiting_tasks: Annotated[
        int | None,
        values.count,
        Option(1000, "Max tasks of async views that wait at a time, per process. None: no limit."),
    ]


# Reading the table of options


class Row(NamedTuple):
    """An option of the table. `kind`: the type of the option. `check`: a function that checks a
    value, and returns it in the form that the library uses."""

    name: str
    kind: Any
    default: Any
    why: str
    check: values.Check

    def checked(self, value: Any) -> Any:
        """Return a value in the form that the library uses. Raise TypeError or ValueError if the
        value is invalid."""
        absent = value is None and type(None) in get_args(self.kind)
        return None if absent else self.check(self.name, value)

    @property
    def path(self) -> bool:
        """True if the value may be given as a dotted path, which is a str with a dot."""
        return self.check in (values.key, values.function)


def table(options: Any) -> Mapping[str, Row]:
    """Return the rows of the class `options` of this module, by the name of the option."""
    rows = {}
    for name, hint in get_type_hints(options, include_extras=True).items():
        kind, *checks, option = get_args(hint)
        implied = values.flag if kind in (bool, bool | None) else values.anything
        rows[name] = Row(name, kind, option.default, option.why, *(checks or [implied]))
    return MappingProxyType(rows)


SETTINGS = table(Settings)
NAMED = table(NamedOptions)
SEMAPHORE = table(SemaphoreOptions)
REQUESTS = table(Requests)
ENTRY = table(EntryOptions)
