"""Prometheus metrics, for projects that install `django-redis-sync[prometheus]`.

    from django_redis_sync import metrics
    metrics.register()                      # into prometheus_client's default registry

Any exporter of that registry (`prometheus_client.start_http_server`, django-prometheus'
view) then shows them. Each scrape reads Redis:

    redis_sync_up                                   1 if Redis answered, else 0 and nothing more
    redis_sync_names                                names used within the last day
    redis_sync_names_left_out                       names without series of their own
    redis_sync_all_in_use                           permits in use, of all names together
    redis_sync_all_waiting                          waiters
    redis_sync_all_paused                           names that are paused
    redis_sync_all_oldest_hold_seconds              seconds since the oldest grant in force
    redis_sync_all_events_total{event}              events ever
    redis_sync_all_seconds_total{what}              seconds waited and held
    redis_sync_limit{name}                          permits, of each key of a keyed policy
    redis_sync_in_use{name}                         permits in use
    redis_sync_waiting{name}                        waiters
    redis_sync_shares_waiting{name}                 shares with waiters, of a name that has shares
    redis_sync_paused{name}                         1 if an operator paused the name
    redis_sync_oldest_hold_seconds{name}            seconds since the oldest grant in force
    redis_sync_last_minute{name,event}              events of the last whole minute
    redis_sync_last_minute_seconds{name,what}       seconds waited and held, of the same events
    redis_sync_events_total{name,event}             events ever
    redis_sync_seconds_total{name,what}             their seconds

`event` is granted, waited, rejected, shadow_rejected, timed_out, released, reclaimed, lost, or
share_rejected (because of share_limit, including shadow mode). With on_full="retry", there are also
job_delivered, job_copy_dropped, and job_place_expired (a job that did not come back). Keys and
shares have no series of their own, because clients can make any number of them.

The series `redis_sync_all_...` cover all names. At most MAX_LABELS names also have series of their
own: those in REDIS_SYNC["SEMAPHORES"] and ["ENDPOINTS"], and those that `names` (globs) selects. If
`names` is not given, those with the oldest holders and those used last are added. The label `name`
is a policy or a name. The keys of a policy are summed.

Sums and the counts of policies are some seconds old. Every process shows the same numbers, so one
scrape target per database is enough. docs/monitoring has rules for alerts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import REGISTRY, Collector, CollectorRegistry

from .exceptions import SyncError
from .operators.facts import Status
from .operators.history import Counters, History, add, histories
from .operators.listing import Group, groups_of
from .operators.names import (
    Recent,
    configured,
    count_names,
    held_since,
    marked,
    newest,
    split_registry,
)
from .operators.statistics import SITE, statistics_of
from .operators.status import statuses

#: Max names with series of their own.
MAX_LABELS = 100
#: Max entries of the index of holders that are read: the oldest.
_OLDEST = 20

_EVENTS = (
    "granted",
    "waited",
    "rejected",
    "shadow_rejected",
    "timed_out",
    "released",
    "reclaimed",
    "lost",
    "share_rejected",
    "job_delivered",
    "job_copy_dropped",
    "job_place_expired",
)
_SECONDS = {"wait": "wait_seconds", "held": "held_seconds"}


def register(
    *,
    registry: CollectorRegistry = REGISTRY,
    names: Iterable[str] | None = None,
    using: str | None = None,
) -> SyncCollector:
    """Add the metrics of a cache alias to a registry of prometheus-client, and return the
    collector.

    - `registry`: default: prometheus_client's default registry.
    - `names`: globs of names that have series, in addition to those in the settings. None: the
      names with the oldest holders and those used last.
    - `using`: a cache alias. None: REDIS_SYNC["CACHE"].
    """
    collector = SyncCollector(names=names, using=using)
    registry.register(collector)
    return collector


class SyncCollector(Collector):
    """The collector of the metrics. `names` and `using`: see `register`."""

    def __init__(self, *, names: Iterable[str] | None = None, using: str | None = None) -> None:
        self._globs, self._using = None if names is None else tuple(names), using

    def describe(self) -> Iterator[Metric]:
        """Return the families without reading Redis. A registry calls this at the registration."""
        yield from (_up(), *_families().values())

    def collect(self) -> Iterator[Metric]:
        """Read Redis and return the families. If Redis is down, `redis_sync_up` is 0."""
        families = _families()
        try:
            self._fill(families)
        except SyncError:
            yield _up(0)
            return
        yield from (_up(1), *families.values())

    def _fill(self, families: Mapping[str, Any]) -> None:
        count = count_names(using=self._using)
        shown = self._shown()
        plain, policies = split_registry(shown, using=self._using)
        families["names"].add_metric([], count)
        families["left_out"].add_metric([], max(0, count - len(plain) - len(policies)))
        groups, _ = groups_of(shown, using=self._using)
        self._add_sums(families, groups)
        single = [group for group in groups if group.statistics is None]
        read = [(one.name, one.key) for group in single for one in group.all if one.used]
        by_name: dict[str, list[History]] = {}
        for one in histories(read, minutes=2, using=self._using):
            by_name.setdefault(one.name, []).append(one)
        for group in groups:
            _add_now(families, group)
            sums = None if group.statistics is None else group.statistics.history
            _add_events(families, group.name, by_name.get(group.name, []), sums)

    def _add_sums(self, families: Mapping[str, Any], groups: Iterable[Group]) -> None:
        (site,) = statistics_of([SITE], minutes=2, using=self._using)
        families["all_in_use"].add_metric([], site.in_use)
        families["all_waiting"].add_metric([], site.waiting)
        overridden = [name for name, key in marked(using=self._using) if key is None]
        wanted = [(name, None) for name in overridden[:MAX_LABELS]]
        paused = [s for s in statuses(wanted, using=self._using) if s.paused]
        families["all_paused"].add_metric([], len(paused))
        found = statuses([*held_since(using=self._using)][:_OLDEST], using=self._using)
        found += [s for group in groups for s in group.all]
        families["all_oldest"].add_metric([], _oldest(found))
        for event in _EVENTS:
            families["all_events"].add_metric([event], getattr(site.history.ever, event))
        for what, attribute in _SECONDS.items():
            families["all_seconds"].add_metric([what], getattr(site.history.ever, attribute))

    def _shown(self) -> list[str]:
        named = sorted(configured())
        plain, policies = split_registry(named, using=self._using)
        chosen = [name for name in named if name in plain or name in policies]
        if self._globs is None:
            others = [name for name, _ in held_since(using=self._using)][:_OLDEST]
            others += newest(2 * MAX_LABELS, using=self._using)
        else:
            others = [n for n in Recent(using=self._using).every() if self._is_wanted(n)]
        return list(dict.fromkeys([*chosen, *others]))[:MAX_LABELS]

    def _is_wanted(self, name: str) -> bool:
        return any(fnmatchcase(name, glob) for glob in self._globs or ())


#: The families by a short name: suffix of the metric's name, help text, and labels.
_GAUGES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "names": ("names", "Names used within the last day.", ()),
    "left_out": ("names_left_out", "Names without series of their own.", ()),
    "all_in_use": ("all_in_use", "Permits in use, of all names.", ()),
    "all_waiting": ("all_waiting", "Waiters, of all names.", ()),
    "all_paused": ("all_paused", "Names that are paused.", ()),
    "all_oldest": ("all_oldest_hold_seconds", "How long the oldest holder of all has held.", ()),
    "limit": ("limit", "Permits (of each key).", ("name",)),
    "in_use": ("in_use", "Permits in use.", ("name",)),
    "waiting": ("waiting", "Waiters.", ("name",)),
    "shares": ("shares_waiting", "Shares with waiters.", ("name",)),
    "paused": ("paused", "Paused by an operator.", ("name",)),
    "oldest": ("oldest_hold_seconds", "How long the oldest holder has held.", ("name",)),
    "minute": ("last_minute", "Events of the last whole minute.", ("name", "event")),
    "minute_seconds": ("last_minute_seconds", "Seconds waited and held.", ("name", "what")),
}
_COUNTERS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "all_events": ("all_events", "Events ever, of all names.", ("event",)),
    "all_seconds": ("all_seconds", "Seconds waited and held ever, of all names.", ("what",)),
    "events": ("events", "Events ever.", ("name", "event")),
    "seconds": ("seconds", "Seconds waited and held ever.", ("name", "what")),
}


def _families() -> dict[str, Any]:
    return {
        short: kind(f"redis_sync_{name}", text, labels=labels)
        for kind, rows in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS))
        for short, (name, text, labels) in rows.items()
    }


def _up(value: int | None = None) -> GaugeMetricFamily:
    return GaugeMetricFamily("redis_sync_up", "Whether Redis answered.", value=value)


def _add_now(families: Mapping[str, Any], group: Group) -> None:
    label = [group.name]
    if group.limit is not None:
        families["limit"].add_metric(label, group.limit)
    families["in_use"].add_metric(label, group.in_use)
    families["waiting"].add_metric(label, group.waiting)
    if any(s.share_count for s in group.all):
        families["shares"].add_metric(label, group.shares_waiting)
    families["paused"].add_metric(label, int(group.paused))
    families["oldest"].add_metric(label, _oldest(group.all))


def _oldest(found: Iterable[Status]) -> float:
    held = [(s.at - h.since).total_seconds() for s in found for h in s.holders]
    return max(held, default=0.0)


def _add_events(
    families: Mapping[str, Any], name: str, histories: list[History], statistics: History | None
) -> None:
    """Add the counters of a name, or the statistics of a policy."""
    # The last row is the current minute, so the one before it is the last complete one.
    minute = add(h.rows[0][1] for h in histories) if statistics is None else statistics.rows[-2][1]
    _add(families["minute"], families["minute_seconds"], name, minute)
    plain = [h.ever for h in histories if h.key is None]
    if statistics is not None:
        _add(families["events"], families["seconds"], name, statistics.ever)
    elif plain and len(histories) == 1:
        _add(families["events"], families["seconds"], name, plain[0])


def _add(events: Any, seconds: Any, name: str, counters: Counters) -> None:
    for event in _EVENTS:
        events.add_metric([name, event], getattr(counters, event))
    for what, attribute in _SECONDS.items():
        seconds.add_metric([name, what], getattr(counters, attribute))
