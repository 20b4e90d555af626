"""What borrowed tests reach by name and not by fixture, led to a topology instead."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from devtools.topologies import Cluster
from tests.behaviour import child
from tests.support import journal

from .everywhere import Everywhere

#: What children run under, and where that finds the alias and its entry of CACHES, as JSON.
SETTINGS, ELSEWHERE = "tests.topologies.settings", "DJANGO_REDIS_SYNC_TEST_ELSEWHERE"


def alias_of(topology: Any) -> str:
    """What borrowed tests and their children have it as."""
    return type(topology).__name__.lower()


def lead(modules: list[ModuleType], topology: Any, patch: pytest.MonkeyPatch) -> None:
    """For as long as `patch` lasts, what these modules call so is at the topology."""

    def everywhere(url: str) -> Everywhere:
        return Everywhere(topology)

    patch.setattr(child, "SETTINGS", SETTINGS)
    others: dict[str, Any] = {"redis": SimpleNamespace(Redis=SimpleNamespace(from_url=everywhere))}
    if isinstance(topology, Cluster):
        patch.setattr(journal, "CODA", by_name(journal.CODA))
        others["journalling"] = partial(_journalling, topology)
    for module in modules:
        for name, other in others.items():
            if hasattr(module, name):
                patch.setattr(module, name, other)


def by_name(coda: str) -> str:
    """The journal as a list for each name, in that name's slot: one list would have one slot."""
    own = coda.replace("'%(key)s', cjson", "'%(key)s' .. string.match(KEYS[1], '%%b{}'), cjson")
    assert own != coda
    return own


class Journals:
    """The journals of all names, each judged by itself: a name lives on one server."""

    def __init__(self, whole: journal.Journal, topology: Cluster) -> None:
        self._whole, self._topology = whole, topology

    def check(self, **options: Any) -> None:
        """AssertionError shows the violations there are."""
        for one in self._each():
            one.check(**options)

    def __iter__(self) -> Iterator[Any]:
        for one in self._each():
            yield from one

    def _each(self) -> Iterator[journal.Journal]:
        with Everywhere(self._topology) as everywhere:
            keys = list(everywhere.scan_iter(match=f"{self._whole.key}{{*"))
            assert keys, f"nothing was written to the journals {self._whole.key}"
            for key in map(bytes.decode, keys):
                yield journal.Journal(everywhere.at(key), key, self._whole.constants)


@contextlib.contextmanager
def _journalling(topology: Cluster, url: str, **options: Any) -> Iterator[Journals]:
    with journal.journalling(url, **options) as whole:
        yield Journals(whole, topology)
