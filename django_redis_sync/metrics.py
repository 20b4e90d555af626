"""Prometheus metrics, for projects that install `django-redis-sync[prometheus]`.

    from django_redis_sync import metrics
    metrics.register()                      # into prometheus_client's default registry

Any exporter of that registry (`prometheus_client.start_http_server`, django-prometheus'
view) shows them then. Redis is read when it is scraped, and at no other time:

    redis_sync_up                                   1 when Redis answered, else 0 and nothing more
    redis_sync_names                                names used within the last day
    redis_sync_limit{name}                          permits, of each key for a keyed policy
    redis_sync_in_use{name}                         permits in use
    redis_sync_waiting{name}                        waiters
    redis_sync_paused{name}                         1 when an operator paused it
    redis_sync_oldest_hold_seconds{name}            how long the oldest holder has held
    redis_sync_last_minute{name,event}              events of the last whole minute
    redis_sync_last_minute_seconds{name,what}       seconds waited and held, of the same events
    redis_sync_events_total{name,event}             events ever
    redis_sync_seconds_total{name,what}             their seconds

`event` is granted, waited, rejected, shadow_rejected, timed_out, released, reclaimed or lost.

The label `name` is a policy or a name, never a key: children are summed. Its values are those in
REDIS_SYNC["SEMAPHORES"] and ["ENDPOINTS"] and those that `names` (globs) let in, MOST_LABELS at the
most. Of a policy they are the sums that the processes keep, some seconds old.
Every process shows the same numbers, so one scrape target per database is enough.

An alert that has proved useful, when it holds for five minutes: `sum by (name)
(redis_sync_last_minute{event=~"rejected|timed_out"}) > 0 and on (name) redis_sync_in_use >=
redis_sync_limit`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import REGISTRY, Collector, CollectorRegistry

from .exceptions import SyncError
from .operators.configured import configured
from .operators.history import Counters, History, add, histories
from .operators.names import (
    Group,
    Recent,
    count_keys,
    count_names,
    counted,
    groups_of,
    is_listed,
)

#: Names that are shown singly, and names and keys that are read for one scrape, at the most.
MOST_LABELS, MOST_READ = 200, 280

_EVENTS = (
    "granted",
    "waited",
    "rejected",
    "shadow_rejected",
    "timed_out",
    "released",
    "reclaimed",
    "lost",
)
_SECONDS = {"wait": "wait_seconds", "held": "held_seconds"}


def register(
    *,
    registry: CollectorRegistry = REGISTRY,
    names: Iterable[str] = (),
    using: str | None = None,
) -> SyncCollector:
    """Add the metrics of a cache alias to a registry of prometheus-client."""
    collector = SyncCollector(names=names, using=using)
    registry.register(collector)
    return collector


class SyncCollector(Collector):
    """The metrics above. `names`: globs of further names to show; `using`: a cache alias."""

    def __init__(self, *, names: Iterable[str] = (), using: str | None = None) -> None:
        self._globs, self._using = tuple(names), using

    def describe(self) -> Iterator[Metric]:
        """The families, without asking Redis: a registry calls this when it is registered."""
        yield from _families().values()

    def collect(self) -> Iterator[Metric]:
        """The families, read now. Redis down is a value, not an error."""
        families = _families()
        try:
            self._fill(families)
        except SyncError:
            yield _up(0)
            return
        families["up"] = _up(1)
        yield from families.values()

    def _fill(self, families: Mapping[str, Any]) -> None:
        families["names"].add_metric([], count_names(using=self._using))
        shown = self._shown()
        groups, _ = groups_of(shown, MOST_READ - len(shown), using=self._using)
        read = [(one.name, one.key) for group in groups for one in group.all]
        by_name: dict[str, list[History]] = {}
        for one in histories(read, minutes=2, using=self._using):
            by_name.setdefault(one.name, []).append(one)
        sums = counted([group.name for group in groups if group.keys], using=self._using)
        for group in groups:
            _add_now(families, group)
            told = sums[group.name].history if group.name in sums else None
            _add_events(families, group.name, by_name[group.name], told)

    def _shown(self) -> list[str]:
        named = sorted(configured())
        used = is_listed([(name, None) for name in named], using=self._using)
        keys = count_keys(named, using=self._using)
        chosen = [name for name, here in zip(named, used, strict=True) if here or keys[name]]
        if self._globs:
            others = (n for n in Recent(using=self._using).every() if self._is_wanted(n))
            chosen = list(dict.fromkeys([*chosen, *others]))
        return chosen[:MOST_LABELS]

    def _is_wanted(self, name: str) -> bool:
        return any(fnmatchcase(name, glob) for glob in self._globs)


def _families() -> dict[str, Any]:
    name = ["name"]
    return {
        "up": _up(),
        "names": GaugeMetricFamily("redis_sync_names", "Names used within the last day."),
        "limit": GaugeMetricFamily("redis_sync_limit", "Permits (of each key).", labels=name),
        "in_use": GaugeMetricFamily("redis_sync_in_use", "Permits in use.", labels=name),
        "waiting": GaugeMetricFamily("redis_sync_waiting", "Waiters.", labels=name),
        "paused": GaugeMetricFamily("redis_sync_paused", "Paused by an operator.", labels=name),
        "oldest": GaugeMetricFamily(
            "redis_sync_oldest_hold_seconds", "How long the oldest holder has held.", labels=name
        ),
        "minute": GaugeMetricFamily(
            "redis_sync_last_minute", "Events of the last whole minute.", labels=["name", "event"]
        ),
        "minute_seconds": GaugeMetricFamily(
            "redis_sync_last_minute_seconds", "Seconds waited and held.", labels=["name", "what"]
        ),
        "events": CounterMetricFamily(
            "redis_sync_events", "Events ever.", labels=["name", "event"]
        ),
        "seconds": CounterMetricFamily(
            "redis_sync_seconds", "Seconds waited and held ever.", labels=["name", "what"]
        ),
    }


def _up(value: int | None = None) -> GaugeMetricFamily:
    return GaugeMetricFamily("redis_sync_up", "Whether Redis answered.", value=value)


def _add_now(families: Mapping[str, Any], group: Group) -> None:
    label = [group.name]
    if group.limit is not None:
        families["limit"].add_metric(label, group.limit)
    families["in_use"].add_metric(label, group.in_use)
    families["waiting"].add_metric(label, group.waiting)
    families["paused"].add_metric(label, int(group.paused))
    held = [(s.at - h.since).total_seconds() for s in group.all for h in s.holders]
    families["oldest"].add_metric(label, max(held, default=0.0))


def _add_events(
    families: Mapping[str, Any], name: str, histories: list[History], sums: History | None
) -> None:
    """Of a name without keys its own counters; of a policy, the sums that processes keep."""
    # The last row is of a minute that is not over; that before it is whole.
    minute = add(h.rows[0][1] for h in histories) if sums is None else sums.rows[-2][1]
    _add(families["minute"], families["minute_seconds"], name, minute)
    plain = [h.ever for h in histories if h.key is None]
    if sums is not None:
        _add(families["events"], families["seconds"], name, sums.ever)
    elif plain and len(histories) == 1:
        _add(families["events"], families["seconds"], name, plain[0])


def _add(events: Any, seconds: Any, name: str, counters: Counters) -> None:
    for event in _EVENTS:
        events.add_metric([name, event], getattr(counters, event))
    for what, attribute in _SECONDS.items():
        seconds.add_metric([name, what], getattr(counters, attribute))
