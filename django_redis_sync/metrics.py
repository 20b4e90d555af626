"""Prometheus metrics, for projects that install `django-redis-sync[prometheus]`.

    from django_redis_sync import metrics
    metrics.register()                      # into prometheus_client's default registry

Any exporter of that registry (`prometheus_client.start_http_server`, django-prometheus'
view) then shows them. Each scrape reads Redis:

    redis_sync_up                                   1 if Redis answered; else 0, and no other series
    redis_sync_names                                names used within the last day
    redis_sync_names_left_out                       names without series of their own
    redis_sync_all_in_use                           permits in use, of all names together
    redis_sync_all_waiting                          waiters
    redis_sync_all_paused                           paused names and policies, at most MAX_LABELS
    redis_sync_all_oldest_hold_seconds              seconds since the grant of the oldest holder
    redis_sync_all_longest_wait_seconds             seconds that the first waiter has waited
    redis_sync_all_events_total{event}              events ever
    redis_sync_all_seconds_total{what}              seconds waited and held
    redis_sync_limit{name}                          the limit; for a keyed policy, of each key
    redis_sync_rate_permits{name}                   permits per period, of a name that has a rate
    redis_sync_rate_used{name}                      permits granted within the last period
    redis_sync_rate_opens_seconds{name}             seconds until a newcomer could get a permit
    redis_sync_in_use{name}                         permits in use
    redis_sync_waiting{name}                        waiters
    redis_sync_shares_waiting{name}                 shares with waiters, of a name that has shares
    redis_sync_paused{name}                         1 if an operator paused the name
    redis_sync_oldest_hold_seconds{name}            seconds since the grant of the oldest holder
    redis_sync_longest_wait_seconds{name}           seconds that the first waiter has waited
    redis_sync_last_minute{name,event}              events of the last whole minute
    redis_sync_last_minute_seconds{name,what}       seconds waited and held, of the same events
    redis_sync_events_total{name,event}             events ever
    redis_sync_seconds_total{name,what}             seconds waited and held ever

`event` is granted, waited, skipped (no permit at once, and the caller did not want to wait),
rejected, shadow_rejected, timed_out, released, reclaimed, lost, or the cause of a rejection, also
in shadow mode: share_rejected, pause_rejected, max_waiters_rejected, or rate_rejected. Keys and
shares have no series of their own, because clients can make any number of them.

The series `redis_sync_all_...` cover all names. At most MAX_LABELS names also have series of their
own. These are the names in REDIS_SYNC["SEMAPHORES"] and ["ENDPOINTS"], and the names that match
`names`, a list of globs. If `names` is not given, the names with the longest waits, those with the
oldest holders, and the names used last are added. The label `name` is a policy, a family such as
"webhook:{id}" or "invoice:*", or a name. The keys of a policy and the names of a family are summed.
For a rate, the highest value of their busiest keys or names is shown.

A family has no series of events that never happened. A name of a family has series of its own only
if it matches `names`, or if it has a holder or a waiter for LONG seconds: its permits in use, its
waiters, its oldest holder, and its longest wait.

The series of all names and the counts of policies are some seconds old. Every process shows the
same numbers, so one scrape target per database is enough. docs/monitoring has rules for alerts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import REGISTRY, Collector, CollectorRegistry

from . import conf
from .exceptions import SyncError, Unavailable
from .logs import logger
from .operators.facts import Status
from .operators.families import Pair, families, families_of
from .operators.groups import Group, groups_of
from .operators.history import Counters, History, add, histories
from .operators.names import (
    Recent,
    configured,
    count_keys,
    count_names,
    held_since,
    listed_of,
    newest,
    split_registry,
    waiting_since,
    with_override,
)
from .operators.statistics import SITE, statistics_of
from .operators.status import readable, statuses

#: Max names with series of their own.
MAX_LABELS = 100
#: A scrape reads at most this many of the names with the oldest holders, and of those with the
#: longest waits.
_OLDEST = 20
#: Seconds of a hold or a wait from which on a name of a family has series of its own.
LONG = 300.0

_SECONDS = {"wait": "wait_seconds", "held": "held_seconds"}
_EVENTS = [one for one in Counters.__dataclass_fields__ if one not in ("peak", *_SECONDS.values())]

#: The help text and the labels of each metric, by the metric's name without `redis_sync_`.
_GAUGES: dict[str, tuple[str, ...]] = {
    "names": ("Names used within the last day.",),
    "names_left_out": ("Names without series of their own.",),
    "all_in_use": ("Permits in use, of all names.",),
    "all_waiting": ("Waiters, of all names.",),
    "all_paused": ("Names that are paused.",),
    "all_oldest_hold_seconds": ("Seconds since the grant of the oldest holder, of all names.",),
    "all_longest_wait_seconds": ("Seconds that the first waiter has waited, of all names.",),
    "limit": ("The limit; for a keyed policy, of each key.", "name"),
    "rate_permits": ("Permits per period of the rate; for a keyed policy, of each key.", "name"),
    "rate_used": ("Permits granted within the last period of the rate.", "name"),
    "rate_opens_seconds": ("Seconds until the rate lets a newcomer get a permit.", "name"),
    "in_use": ("Permits in use.", "name"),
    "waiting": ("Waiters.", "name"),
    "shares_waiting": ("Shares with waiters.", "name"),
    "paused": ("Paused by an operator.", "name"),
    "oldest_hold_seconds": ("Seconds since the grant of the oldest holder.", "name"),
    "longest_wait_seconds": ("Seconds that the first waiter has waited.", "name"),
    "last_minute": ("Events of the last whole minute.", "name", "event"),
    "last_minute_seconds": (
        "Seconds of the waits and holds that ended in the last whole minute.",
        "name",
        "what",
    ),
}
_COUNTERS: dict[str, tuple[str, ...]] = {
    "all_events": ("Events so far, of all names.", "event"),
    "all_seconds": ("Seconds waited and held so far, of all names.", "what"),
    "events": ("Events so far.", "name", "event"),
    "seconds": ("Seconds waited and held so far.", "name", "what"),
}
#: Environment variables of which one turns on the multiprocess mode of prometheus-client.
_MULTIPROCESS = ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")
#: A function that adds a sample to a metric. It gets the metric's name, the value, and the labels.
_Put = Callable[..., None]


def register(
    *,
    registry: CollectorRegistry = REGISTRY,
    names: Iterable[str] | None = None,
    using: str | None = None,
) -> SyncCollector:
    """Register a collector of the metrics of a cache alias with prometheus-client, and return it.

    - `registry`: a registry of prometheus-client. If it is not given, the default registry.
    - `names`: globs of names that have series, in addition to the names in the settings. None: the
      names with the longest waits, those with the oldest holders, and the names used last.
    - `using`: a cache alias. None: REDIS_SYNC["CACHE"].

    With PROMETHEUS_MULTIPROC_DIR, pages show the files of all processes, and no collector of the
    default registry. Then register the collector in the registry of the page. See
    docs/monitoring.md.
    """
    if registry is REGISTRY and any(name in os.environ for name in _MULTIPROCESS):
        logger.warning(
            "PROMETHEUS_MULTIPROC_DIR is set, so no page shows the metrics of this app from the "
            "default registry: call metrics.register(registry=...) with the registry of the page"
        )
    collector = SyncCollector(names=names, using=using)
    registry.register(collector)
    return collector


class SyncCollector(Collector):
    """The collector of the metrics. `names` and `using`: see `register`."""

    def __init__(self, *, names: Iterable[str] | None = None, using: str | None = None) -> None:
        if isinstance(names, str):  # each of its characters would be a glob
            raise TypeError(f"names must be a list of globs, such as [{names!r}], not {names!r}")
        self._globs, self._using = None if names is None else tuple(names), using

    def describe(self) -> Iterator[Metric]:
        """Return the metrics without samples, and without reading Redis. A registry calls this when
        the collector is registered."""
        yield from (_up(), *_families().values())

    def collect(self) -> Iterator[Metric]:
        """Read Redis and return the metrics. If Redis is down, return only `redis_sync_up` 0."""
        families = _families()

        def put(name: str, value: float, *labels: str) -> None:
            families[name].add_metric(labels, value)

        try:
            if conf.current().without_redis:
                raise Unavailable("WITHOUT_REDIS is set")
            self._read(put)
        except SyncError:
            yield _up(0)
            return
        yield from (_up(1), *families.values())

    def _read(self, put: _Put) -> None:
        shown, made = self._shown(), families(using=self._using)
        count, sizes = count_names(using=self._using), count_keys(made, using=self._using)
        plain, policies = split_registry(shown, using=self._using)
        own = len(plain) + len(policies) + len({*shown} & {*made})
        put("names", count - len(made) + sum(sizes.values()))
        put("names_left_out", max(0, count - own))
        groups, _ = groups_of(shown, using=self._using)
        self._read_sums(put, groups)
        single = [group for group in groups if group.statistics is None]
        pairs = [(one.name, one.key) for group in single for one in group.all if one.used]
        past: dict[str, list[History]] = {}
        for one in histories(pairs, minutes=2, using=self._using):
            past.setdefault(one.name, []).append(one)
        for group in groups:
            _put_state(put, group)
            _put_events(put, group, past.get(group.name, []))
        if self._globs is None:
            for status in self._long(shown):
                _put_counts(put, Group.alone(status))

    def _read_sums(self, put: _Put, groups: Sequence[Group]) -> None:
        (site,) = statistics_of([SITE], minutes=2, using=self._using)
        # A process writes its numbers some seconds late, so those of `groups` may be higher.
        put("all_in_use", max(site.in_use, sum(group.in_use for group in groups)))
        put("all_waiting", max(site.waiting, sum(group.waiting for group in groups)))
        overridden = [(name, None) for name, key in with_override(using=self._using) if key is None]
        found = statuses(overridden[:MAX_LABELS], using=self._using)
        put("all_paused", len([status for status in found if status.paused]))
        found = [*statuses(self._longest(), using=self._using), *(s for g in groups for s in g.all)]
        put("all_oldest_hold_seconds", _oldest(found))
        put("all_longest_wait_seconds", _longest_wait(found))
        _put_counters(put, "all_events", "all_seconds", site.history.ever)

    def _shown(self) -> list[str]:
        """Return the names, policies, and families that have series of events, at most
        MAX_LABELS."""
        named = sorted(configured())
        used = listed_of(None, named, using=self._using)
        if self._globs is None:
            others = [name for name, _ in self._longest()]
            made = families_of([*dict.fromkeys(others)], using=self._using)
            others = [made.get(name, name) for name in others]
            others += newest(2 * MAX_LABELS, using=self._using)
        else:
            recent = Recent(using=self._using)
            others = list(filter(self._is_wanted, recent.every()))
            others += filter(self._is_wanted, recent.inside({*others}))
        return list(dict.fromkeys([*(n for n in named if n in used), *others]))[:MAX_LABELS]

    def _is_wanted(self, name: str) -> bool:
        return any(fnmatchcase(name, glob) for glob in self._globs or ())

    def _longest(self) -> list[Pair]:
        waiting, held = waiting_since(using=self._using), held_since(using=self._using)
        return list(dict.fromkeys([*[*waiting][:_OLDEST], *[*held][:_OLDEST]]))

    def _long(self, shown: Sequence[str]) -> list[Status]:
        """Return the names of families that have a holder or a waiter for LONG seconds."""
        names = [name for name, key in self._longest() if key is None and name not in shown]
        made = families_of(names, using=self._using)
        found, _ = readable([(name, None) for name in made], using=self._using)
        return [
            status
            for status in found
            if any((status.at - one.since).total_seconds() >= LONG for one in status.everyone)
        ]


def _families() -> dict[str, Any]:
    return {
        name: kind(f"redis_sync_{name}", text, labels=labels)
        for kind, rows in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS))
        for name, (text, *labels) in rows.items()
    }


def _up(value: int | None = None) -> GaugeMetricFamily:
    return GaugeMetricFamily("redis_sync_up", "Whether Redis answered.", value=value)


def _put_state(put: _Put, group: Group) -> None:
    if group.limit is not None:
        put("limit", group.limit, group.name)
    if rates := [status.rate for status in group.all if status.rate is not None]:
        put("rate_permits", max(rate.permits for rate in rates), group.name)
        put("rate_used", max(rate.used for rate in rates), group.name)
        put("rate_opens_seconds", max(rate.opens_in for rate in rates), group.name)
    _put_counts(put, group)
    if any(status.share_count for status in group.all):
        put("shares_waiting", group.shares_waiting, group.name)
    if not group.is_family:  # operators can't pause a family
        put("paused", int(group.paused), group.name)


def _put_counts(put: _Put, group: Group) -> None:
    put("in_use", group.in_use, group.name)
    put("waiting", group.waiting, group.name)
    put("oldest_hold_seconds", _oldest(group.all), group.name)
    put("longest_wait_seconds", _longest_wait(group.all), group.name)


def _oldest(found: Iterable[Status]) -> float:
    return max(((s.at - h.since).total_seconds() for s in found for h in s.holders), default=0.0)


def _longest_wait(found: Iterable[Status]) -> float:
    return max(((s.at - w.since).total_seconds() for s in found for w in s.waiters), default=0.0)


def _put_events(put: _Put, group: Group, past: list[History]) -> None:
    """Add the samples of a group's events, from the statistics of the group. Without statistics,
    use `past`, the histories of the group's names.

    For a policy without statistics, add only the events of its keys in the last minute, and no
    totals. The counters of the keys expire, so a total could fall.
    """
    if group.statistics is not None:
        past = [group.statistics.history]
    # The last period of a history is the current minute. The period before is complete.
    minute = add(one.rows[-2][1] for one in past)
    if group.is_family:
        put = _without_zeros(put)
    _put_counters(put, "last_minute", "last_minute_seconds", minute, group.name)
    if len(past) == 1 and past[0].key is None:
        _put_counters(put, "events", "seconds", past[0].ever, group.name)


def _without_zeros(put: _Put) -> _Put:
    def put_others(name: str, value: float, *labels: str) -> None:
        if value:
            put(name, value, *labels)

    return put_others


def _put_counters(put: _Put, events: str, seconds: str, counters: Counters, *labels: str) -> None:
    for event in _EVENTS:
        put(events, getattr(counters, event), *labels, event)
    for what, attribute in _SECONDS.items():
        put(seconds, getattr(counters, attribute), *labels, what)
