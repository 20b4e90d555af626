"""Prometheus metrics, for projects that install `django-redis-sync[prometheus]`.

    from django_redis_sync import metrics
    metrics.register()                      # into prometheus_client's default registry

Whatever already exposes that registry (`prometheus_client.start_http_server`, django-prometheus'
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
    redis_sync_events_total{name,event}             events ever, of names without keys
    redis_sync_seconds_total{name,what}             their seconds

`event` is granted, waited, rejected, shadow_rejected, timed_out, released, reclaimed or lost.

The label `name` is a policy or a name, never a key: children are summed. Its values are those in
REDIS_SYNC["SEMAPHORES"] and ["ENDPOINTS"] and those that `names` (globs) let in, MOST_LABELS at the
most. Children come and go, so what they counted is no counter: it is the gauge of the last minute.
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
from .operators.history import Counters, History, add, histories
from .operators.names import Group, configured, grouped, names_in_use
from .operators.status import readable

#: Names that are shown one by one, and children of one policy that are summed, at the most.
MOST_LABELS, MOST_CHILDREN = 200, 1000

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
    """Add the metrics of one cache alias to a registry of prometheus-client."""
    collector = SyncCollector(names=names, using=using)
    registry.register(collector)
    return collector


class SyncCollector(Collector):
    """The metrics above. `names`: globs of further names to show; `using`: a cache alias."""

    def __init__(self, *, names: Iterable[str] = (), using: str | None = None) -> None:
        self._globs, self._using = tuple(names), using

    def describe(self) -> Iterator[Metric]:
        """What there is, without asking Redis: a registry calls this when it is registered."""
        yield from _families().values()

    def collect(self) -> Iterator[Metric]:
        """What is. Redis down is a value, not an error."""
        families = _families()
        try:
            self._fill(families)
        except SyncError:
            yield _up(0)
            return
        families["up"] = _up(1)
        yield from families.values()

    def _fill(self, families: Mapping[str, Any]) -> None:
        known = names_in_use(using=self._using)
        families["names"].add_metric([], len(known))
        shown = self._shown(known)
        found, _ = readable(shown, using=self._using)
        groups = grouped(found)
        read = [(one.name, one.key) for one in found]
        by_name: dict[str, list[History]] = {}
        for one in histories(read, minutes=2, using=self._using):
            by_name.setdefault(one.name, []).append(one)
        for group in groups:
            _add_now(families, group)
            _add_events(families, group.name, by_name[group.name])

    def _shown(self, known: list[tuple[str, str | None]]) -> list[tuple[str, str | None]]:
        named = configured()
        by_name: dict[str, list[tuple[str, str | None]]] = {}
        for name, key in known:
            if name in named or any(fnmatchcase(name, glob) for glob in self._globs):
                by_name.setdefault(name, []).append((name, key))
        chosen = list(by_name.items())[:MOST_LABELS]
        return [one for _, children in chosen for one in children[:MOST_CHILDREN]]


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
            "redis_sync_events", "Events ever, of names without keys.", labels=["name", "event"]
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


def _add_events(families: Mapping[str, Any], name: str, histories: list[History]) -> None:
    # The last row is of a minute that is not over; the one before it is whole.
    _add(families["minute"], families["minute_seconds"], name, add(h.rows[0][1] for h in histories))
    plain = [h.ever for h in histories if h.key is None]
    if plain and len(histories) == 1:
        _add(families["events"], families["seconds"], name, plain[0])


def _add(events: Any, seconds: Any, name: str, counters: Counters) -> None:
    for event in _EVENTS:
        events.add_metric([name, event], getattr(counters, event))
    for what, attribute in _SECONDS.items():
        seconds.add_metric([name, what], getattr(counters, attribute))
