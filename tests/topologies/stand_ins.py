"""Replacements for names that borrowed tests import, so that they use a topology."""

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

#: The settings module of child processes, and the environment variable from which it reads the
#: alias and its entry of CACHES, as JSON.
SETTINGS, ELSEWHERE = "tests.topologies.settings", "DJANGO_REDIS_SYNC_TEST_ELSEWHERE"


def alias_of(topology: Any) -> str:
    """Return the cache alias of a topology."""
    return type(topology).__name__.lower()


def lead(modules: list[ModuleType], topology: Any, patch: pytest.MonkeyPatch) -> None:
    """Patch `redis` and `journalling` in these modules, so that they use the topology."""

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
    """Return `coda` with one journal list per name, in the slot of the name."""
    own = coda.replace("'%(key)s', cjson", "'%(key)s' .. string.match(KEYS[1], '%%b{}'), cjson")
    assert own != coda
    return own


class Journals:
    """The journals of all names. Each is checked separately, as a name is on one server."""

    def __init__(self, whole: journal.Journal, topology: Cluster) -> None:
        self._whole, self._topology = whole, topology

    def check(self, **options: Any) -> None:
        """Raise AssertionError with the violations if there are any."""
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
