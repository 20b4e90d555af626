"""Policies: how a semaphore limits requests. The options of a policy are parsed once, into a frozen
Policy. `Endpoints` finds the entry of ENDPOINTS whose name or pattern matches a view.

An option may come from several sources. The first source that gives the option applies. The order
is: the decorator or mixin, the entry in ENDPOINTS, the entry in SEMAPHORES, REQUESTS.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import field, make_dataclass
from fnmatch import translate
from functools import cache
from typing import Any, NamedTuple

from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.utils.module_loading import import_string

from .. import conf
from ..defaults import ENTRY
from ..protocol.keys import check_text
from ..values import MOST_PERMITS, unknown


class _NotGiven:
    """The type of NOT_GIVEN, the value of an option that was left out. None can't have this
    meaning, because it is a valid value of some options."""

    def __repr__(self) -> str:
        return "NOT_GIVEN"


NOT_GIVEN: Any = _NotGiven()


_FIELDS = [
    (row.name, row.kind, row.checked(row.default)) for row in ENTRY.values() if row.name != "limit"
]
_Options: Any = make_dataclass(
    "_Options",
    [
        ("name", str),
        ("limit", ENTRY["limit"].kind),
        *_FIELDS,
        ("semaphores", dict[Any, Any], field(default_factory=dict, repr=False, compare=False)),
    ],
    frozen=True,
    slots=True,
)


class Policy(_Options):  # type: ignore[misc]
    """A limit for requests. At most `limit` requests of the same `name` and key run at the same
    time. Times are in seconds.

    `semaphores`: a cache of the policy's semaphores, by key, limit, share, and share_limit. The
    other attributes are the options that `defaults.EntryOptions` explains, with two differences.
    For an option that was given as a dotted path, the attribute is the imported callable. `methods`
    are in upper case.
    """

    __slots__ = ()

    @property
    def same_for_all(self) -> bool:
        """True if the semaphore, the limit, and the share are the same for all requests."""
        return (
            self.key is None
            and self.share is None
            and not callable(self.limit)
            and not callable(self.share_limit)
        )

    def counts(self, method: str | None, preflight: bool = False) -> bool:
        """Return True if this policy limits a request with this HTTP method. The option `methods`
        lists the methods to limit. Without the option, the policy limits all requests except
        preflights. `preflight`: True for an OPTIONS request that a framework answers without the
        view's code."""
        return not preflight if self.methods is None else method in self.methods


class SemaphoreId(NamedTuple):
    """Identifies a semaphore of a policy: its cache alias, name, and key."""

    using: str
    name: str
    key: str | None


def parse(name: str, *layers: Mapping[str, Any]) -> Policy:
    """Return the policy of a name. `layers`: dicts of options. If several layers give an option,
    the first of them applies. If no layer gives the option, the settings apply.

    Raise TypeError or ValueError if a value is invalid, and ImproperlyConfigured if neither
    `layers` nor the settings give a limit.
    """
    config = conf.current()
    requests = {option: config.requests[option] for option in ENTRY if option in config.requests}
    chain = ChainMap(*(dict(layer) for layer in (*layers, config.named(name))), requests)
    given = {option: checked(option, value) for option, value in chain.items()}
    name = check_text("a name", name)
    if given.get("limit") is None and given.get("rate"):
        given["limit"] = MOST_PERMITS
    if given.get("limit") is None:
        raise ImproperlyConfigured(
            f"The limit of {name!r} is missing: give one where it is used, or set "
            f"REDIS_SYNC['SEMAPHORES'][{name!r}]['limit']."
        )
    if given.get("fair") is False and (given.get("share") or given.get("share_limit")):
        raise ValueError("fair must not be False with share or share_limit: shares take turns")
    for option, value in given.items():
        if ENTRY[option].path and isinstance(value, str) and "." in value:
            given[option] = found = import_string(value)
            if not callable(found):
                what = f"{value} is a {type(found).__name__}"
                raise TypeError(f"{option} must be a callable, but {what}")
    return Policy(name=name, **given)


def checked(option: str, value: Any) -> Any:
    """Return the value of an option in the form in which Policy stores it. Raise TypeError or
    ValueError if the value is invalid."""
    if option not in ENTRY:
        raise TypeError(f"not an option of a policy: {unknown([option], ENTRY)}; {_KNOWN}")
    return ENTRY[option].checked(value)


_KNOWN = f"the options are {', '.join(sorted(ENTRY))}"


# Endpoints


class Entry(NamedTuple):
    """An entry of ENDPOINTS: the semaphore's name, and the options that the entry gives."""

    name: str
    options: Mapping[str, Any]


def entry_of(pattern: str, given: Any) -> Entry:
    """Return the entry of ENDPOINTS with the key `pattern` and the value `given`.

    If `given` is a str, it is the name of the semaphore. If it is a dict, it has the options, and
    its item "name" is the name of the semaphore. Without that item, the pattern is the name.

    Raise ImproperlyConfigured if `given` is neither a str nor a dict, or if the pattern is not a
    str.
    """
    if not isinstance(pattern, str):
        raise ImproperlyConfigured(
            f"REDIS_SYNC['ENDPOINTS'] has a key that is not a str: {pattern!r}."
        )
    if isinstance(given, str):
        return Entry(given, {})
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(
            f"REDIS_SYNC['ENDPOINTS'][{pattern!r}] must be the name of a semaphore or a dict."
        )
    options = dict(given)
    return Entry(options.pop("name", pattern), options)


def _prefix(glob: str) -> str:
    """Return the part of a glob before its first wildcard."""
    return re.split(r"[*?[]", glob, maxsplit=1)[0]


class Endpoints:
    """The parsed ENDPOINTS. At most one entry applies to a view. It is the entry with the view's
    exact name. If there is none, it is the entry with the longest glob that matches the name."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.entries = {pattern: entry_of(pattern, entry) for pattern, entry in given.items()}
        self._policies: dict[str, Policy] = {}
        self._patterns: dict[str, str | None] = {}  # by the view's name
        globs = (pattern for pattern in self.entries if _prefix(pattern) != pattern)
        self._globs = sorted(globs, key=lambda glob: (-len(glob), glob))
        #: The ranks and regular expressions of the globs, by the text before the first wildcard. So
        #: most of many globs are never tried.
        self._by_prefix: dict[str, list[tuple[int, re.Pattern[str]]]] = {}
        for rank, glob in enumerate(self._globs):
            found = self._by_prefix.setdefault(_prefix(glob), [])
            found.append((rank, re.compile(translate(glob))))
        self._lengths = {len(prefix) for prefix in self._by_prefix}

    def pattern_of(self, view_name: str) -> str | None:
        """Return the key of ENDPOINTS that applies to a view, or None."""
        if view_name in self.entries:
            return view_name
        ranks = [
            rank
            for length in self._lengths
            for rank, glob in self._by_prefix.get(view_name[:length], ())
            if glob.match(view_name)
        ]
        return self._globs[min(ranks)] if ranks else None

    def pattern_for(self, view_name: str, view: Any) -> str | None:
        """Return the key of ENDPOINTS that applies to a view, or None. The pages of this app have
        none."""
        if view_name not in self._patterns:
            found = None if is_own_page(view) else self.pattern_of(view_name)
            self._patterns[view_name] = found
        return self._patterns[view_name]

    def policy(self, pattern: str) -> Policy:
        """Return the policy of the entry `pattern`. Raise ImproperlyConfigured if it is wrong."""
        found = self._policies.get(pattern)
        if found is None:
            found = self._policies[pattern] = _parsed(*self.entries[pattern])
        return found


class Declared:
    """The options of a decorator or mixin. Together with the settings, they make a policy."""

    def __init__(
        self, name: str | None, options: Mapping[str, Any], of_request: bool = False
    ) -> None:
        """Raise TypeError or ValueError for wrong options.

        `of_request`: True if the options may refer to a request. Then a policy with these options
        is not cached.
        """
        if name is not None:
            name = check_text("a name", name)
        self.name, self.of_request = name, of_request
        self.options = {option: checked(option, value) for option, value in options.items()}

    def declared(self) -> Declared | None:
        """Return this object, because its options are known without a request."""
        return self

    def declared_for(self, request: HttpRequest, args: Any, kwargs: Any) -> Declared:
        """Return this object, because its options are the same for every request."""
        return self


#: Max cached policies of a view. A view with the mixin may use a new name for each request.
_MOST_DECLARED = 1000


class Endpoint:
    """The cached policies of a view. `pattern`: the key of ENDPOINTS that applies, or None."""

    def __init__(self, pattern: str | None) -> None:
        self.pattern = pattern
        self.entry = None if pattern is None else endpoints().entries[pattern]
        self.policy = None if pattern is None else endpoints().policy(pattern)
        self._declared: dict[tuple[Declared, str], Policy] = {}

    def policy_of(self, declared: Declared, fallback: str) -> Policy:
        """Return the policy of a decorator or mixin on this view.

        The name of the policy is the first of these that exists: the name in `declared`, the name
        of the view's entry in ENDPOINTS, `fallback`. If the entry has the same name as the policy,
        the options of the entry apply where `declared` gives none. Raise ImproperlyConfigured for a
        wrong option, or if no limit is set.
        """
        found = self._declared.get((declared, fallback))
        if found is None:
            entry = self.entry
            name = declared.name or (fallback if entry is None else entry.name)
            shared = entry.options if entry is not None and entry.name == name else {}
            found = _parsed(name, declared.options, shared)
            if declared.of_request:
                return found
            if len(self._declared) >= _MOST_DECLARED:
                self._declared.clear()
            self._declared[declared, fallback] = found
        return found


def _parsed(name: str, *layers: Mapping[str, Any]) -> Policy:
    """Return the policy of a name. Raise ImproperlyConfigured for a mistake in the options."""
    try:
        return parse(name, *layers)
    except (TypeError, ValueError, ImportError) as error:
        raise ImproperlyConfigured(f"The policy of {name!r}: {error}.") from error


@cache
def endpoints() -> Endpoints:
    """Return the parsed setting ENDPOINTS."""
    return Endpoints(conf.current().endpoints)


_found: dict[str | None, Endpoint] = {}


def endpoint_of(request: HttpRequest) -> Endpoint:
    """Return the cached policies of this request's view. The first request of a view parses
    them."""
    match = request.resolver_match
    name = None if match is None else match.view_name
    return _found.get(name) or endpoint_named(name, match and match.func)


def endpoint_named(name: str | None, view: Any) -> Endpoint:
    """Return the cached policies of a view. `name`: the name of the view in ENDPOINTS. Raise
    ImproperlyConfigured if the entry of ENDPOINTS is wrong."""
    found = _found.get(name)
    if found is None:
        pattern = None if name is None else endpoints().pattern_for(name, view)
        found = _found.setdefault(name, Endpoint(pattern))
    return found


def is_own_page(view: Any) -> bool:
    """Return True for an admin page of this app. ENDPOINTS never limits these pages. Otherwise, an
    operator who paused a limit of the whole admin could not undo the pause."""
    admin = getattr(view, "model_admin", None)
    return admin is not None and admin.opts.app_label == __name__.partition(".")[0]


@conf.on_change
def _forget() -> None:
    endpoints.cache_clear()
    _found.clear()
