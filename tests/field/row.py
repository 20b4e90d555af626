"""The rows of the field suite, read from the folders beside this module."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

LIMITS = "django_redis_sync.middleware.ConcurrencyLimitMiddleware"
HERE = Path(__file__).resolve().parent
#: What to do if packages are missing. One text for all rows, so that pytest prints one line.
INSTALL = "packages of the field suite are missing: pip install -e '.[field]'"


@dataclass(frozen=True)
class Row:
    """One line of docs/works-with.md, and the function that proves it.

    `view`: the kind of view, and where its limit is. `proof`: the name of the function that raises
    an exception if this doesn't work. It is called with a `proofs.Site` and the row. `path`: the
    URL path of the view. `user`, `transaction`, `server`: the other columns. A server is "WSGI" or
    "ASGI". `settings`: Django settings of this row alone. `arguments`: what else the proof needs.
    """

    view: str
    proof: str
    path: str = ""
    user: str = ""
    transaction: str = ""
    server: str = "WSGI"
    settings: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        parts = (self.view, self.proof, self.user, self.transaction, self.server)
        return ", ".join(part for part in parts if part)


def folders() -> list[str]:
    """Return the names of the projects."""
    return sorted(path.parent.name for path in HERE.glob("*/rows.py"))


def rows_of(folder: str) -> ModuleType:
    """Return the module `rows` of a project."""
    return importlib.import_module(f"tests.field.{folder}.rows")


def missing(folder: str) -> list[str]:
    """Return the packages of a project that are not installed."""
    return [name for name in rows_of(folder).PACKAGES if version_of(name) is None]


def version_of(package: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def sites_of(folder: str) -> list[list[int]]:
    """Return the indexes of the rows of a project, in groups that have the same settings."""
    groups: dict[str, list[int]] = {}
    for index, row in enumerate(rows_of(folder).ROWS):
        groups.setdefault(json.dumps(row.settings, sort_keys=True, default=repr), []).append(index)
    return [*groups.values()]
