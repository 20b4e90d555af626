"""A policy: how a semaphore limits requests. Parsed once into a frozen value, then passed.

The first source that has an option wins: the decorator or mixin, the entry in
ENDPOINTS, the entry in SEMAPHORES, REQUESTS.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, make_dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, NamedTuple

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.http import HttpRequest
from django.utils.module_loading import import_string

from .. import conf
from ..defaults import ENTRY
from ..protocol.keys import check_text
from ..values import unknown


class _NotGiven:
    """An option that was left out, where None means something."""

    def __repr__(self) -> str:
        return "NOT_GIVEN"


NOT_GIVEN: Any = _NotGiven()


_FIELDS = [
    (row.name, row.kind, row.checked(row.default)) for row in ENTRY.values() if row.name != "limit"
]
_Options: Any = make_dataclass(
    "_Options",
    [("name", str), ("limit", ENTRY["limit"].kind), *_FIELDS],
    frozen=True,
    slots=True,
)


class Policy(_Options):  # type: ignore[misc]
    """At most `limit` requests per `name` (and key) at the same time. Times are in seconds.

    Its other attributes are the options of `defaults.Entry`, where each is explained: dotted paths
    resolved, `methods` in upper case.
    """

    __slots__ = ()

    @property
    def keyed(self) -> bool:
        return self.key is not None

    @property
    def refusal_status(self) -> int:
        """The status of the response to a request that was refused because it is full."""
        return self.status or (429 if self.keyed else 503)

    def counts(self, method: str | None, preflight: bool = False) -> bool:
        """Whether requests with this HTTP method are limited. `preflight`: a framework answers it
        before the view's own code."""
        return not preflight if self.methods is None else method in self.methods


class Place(NamedTuple):
    """A semaphore of a policy: the cache alias, its name and key."""

    using: str
    name: str
    key: str | None


def parse(name: str, *layers: Mapping[str, Any]) -> Policy:
    """The policy of a name; in `layers` the first that has an option wins.

    TypeError or ValueError for an impossible value, ImproperlyConfigured when nothing says a limit.
    """
    config = conf.current()
    requests = {option: config.requests[option] for option in ENTRY if option in config.requests}
    chain = ChainMap(*(dict(layer) for layer in (*layers, config.named(name))), requests)
    given = {option: checked(option, value) for option, value in chain.items()}
    check_text("a name", name)
    if given.get("limit") is None:
        raise ImproperlyConfigured(
            f"The limit of {name!r} is missing: give one where it is used, or set "
            f"REDIS_SYNC['SEMAPHORES'][{name!r}]['limit']."
        )
    for option, value in given.items():
        if ENTRY[option].path and isinstance(value, str) and "." in value:
            given[option] = import_string(value)
    return Policy(name=name, **given)


def checked(option: str, value: Any) -> Any:
    """An option's value in the form that Policy has. TypeError or ValueError when it has none."""
    if option not in ENTRY:
        raise TypeError(f"no option of a policy: {unknown([option], ENTRY)}; {_KNOWN}")
    return ENTRY[option].checked(value)


_KNOWN = f"the options are {', '.join(sorted(ENTRY))}"


# Endpoints


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of ENDPOINTS: the semaphore's name and the options given there."""

    name: str
    options: Mapping[str, Any]


def entry_of(pattern: str, given: Any) -> Entry:
    """An entry of ENDPOINTS; a policy of its own is named as its "name" says, or as its pattern.

    ImproperlyConfigured when it is neither a name nor a dict, or the pattern no str.
    """
    if not isinstance(pattern, str):
        raise ImproperlyConfigured(
            f"REDIS_SYNC['ENDPOINTS'] has a key that is no str: {pattern!r}."
        )
    if isinstance(given, str):
        return Entry(given, {})
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(
            f"REDIS_SYNC['ENDPOINTS'][{pattern!r}] must be the name of a semaphore or a dict."
        )
    options = dict(given)
    return Entry(options.pop("name", pattern), options)


class Endpoints:
    """ENDPOINTS, ready to be asked. An exact match beats the longest glob, and one entry wins."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.entries = {pattern: entry_of(pattern, entry) for pattern, entry in given.items()}
        self._globs = sorted(filter(is_glob, given), key=lambda glob: (-len(glob), glob))

    def find(self, view_name: str) -> Entry | None:
        """The entry for a view. Walks the globs: remember the answer."""
        pattern = self.pattern_of(view_name)
        return None if pattern is None else self.entries[pattern]

    def pattern_of(self, view_name: str) -> str | None:
        """Which key of ENDPOINTS is for a view."""
        if view_name in self.entries:
            return view_name
        return next((glob for glob in self._globs if fnmatchcase(view_name, glob)), None)


def is_glob(pattern: str) -> bool:
    return any(char in pattern for char in "*?[")


class Declared:
    """A policy as a decorator gives it: its options, until the settings and the view are known."""

    __slots__ = ("name", "options")

    def __init__(self, name: str | None, options: Mapping[str, Any]) -> None:
        """TypeError or ValueError for mistakes that show without a request."""
        if name is not None:
            check_text("a name", name)
        self.name = name
        self.options = {option: checked(option, value) for option, value in options.items()}

    def declared(self) -> Declared | None:
        """Itself: it needs no request."""
        return self

    def declared_for(self, request: HttpRequest, args: Any, kwargs: Any) -> Declared:
        """Itself: a decorator says the same of all requests."""
        return self

    def __repr__(self) -> str:
        return f"<Declared {self.name!r} {self.options!r}>"


#: Policies remembered for a view; a mixin's methods may make up names without end.
_MOST_DECLARED = 1000


class Endpoint:
    """The settings' policies of a view, remembered: nothing is parsed or matched again."""

    __slots__ = ("_declared", "entry", "policy")

    def __init__(self, entry: Entry | None) -> None:
        self.entry = entry
        self.policy = None if entry is None else _of_settings(entry)
        self._declared: dict[tuple[Declared, str], Policy] = {}

    def policy_of(self, declared: Declared, fallback: str) -> Policy:
        """The policy of a decorator or mixin on this view; `fallback` names a nameless policy.

        The entry in ENDPOINTS counts too where both name the same semaphore, or the
        decorator none. ImproperlyConfigured when nothing says a limit.
        """
        found = self._declared.get((declared, fallback))
        if found is None:
            entry = self.entry
            name = declared.name or (fallback if entry is None else entry.name)
            shared = entry.options if entry is not None and entry.name == name else {}
            found = _parsed(name, declared.options, shared)
            if len(self._declared) >= _MOST_DECLARED:
                self._declared.clear()
            self._declared[declared, fallback] = found
        return found


def _of_settings(entry: Entry) -> Policy:
    return _parsed(entry.name, entry.options)


def _parsed(name: str, *layers: Mapping[str, Any]) -> Policy:
    """As parse, for options from the settings: a mistake there is ImproperlyConfigured."""
    try:
        return parse(name, *layers)
    except (TypeError, ValueError, ImportError) as error:
        raise ImproperlyConfigured(f"The policy of {name!r}: {error}.") from error


@cache
def endpoints() -> Endpoints:
    """The setting ENDPOINTS."""
    return Endpoints(conf.current().endpoints)


_found: dict[str | None, Endpoint] = {}


def endpoint_of(request: HttpRequest) -> Endpoint:
    """The settings' policies of this request's view: a look-up, once the view was met."""
    match = request.resolver_match
    name = None if match is None else match.view_name
    found = _found.get(name)
    if found is None:
        entry = None if name is None else endpoints().find(name)
        found = _found.setdefault(name, Endpoint(entry))
    return found


def _forget(*, setting: str, **_: Any) -> None:
    if setting in (conf.SETTING, "CACHES"):
        endpoints.cache_clear()
        _found.clear()


setting_changed.connect(_forget, dispatch_uid="django_redis_sync.limits.policy")
