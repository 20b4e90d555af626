"""A model without a table. Django's admin needs it for permissions and for the index page."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from .protocol.keys import display, keys_of, split

# Browsers resolve "." and ".." in the path of a URL. So the names "." and ".." have these ids. No
# other name has an id like that.
_DOTS = {".": "%2E", "..": "%2E%2E"}
_UNDOTTED = {dotted: dots for dots, dotted in _DOTS.items()}


class _NoRows(models.Manager["Name"]):
    def get_queryset(self) -> models.QuerySet[Name]:
        # The model has no table. So a query, for example by `dumpdata`, must not use the database.
        rows: models.QuerySet[Name] = super().get_queryset().none()
        return rows


class Name(models.Model):
    """A lock, a semaphore, or a key of a policy, in the admin. Its data is in Redis."""

    id = models.CharField(primary_key=True, max_length=1300)

    objects: ClassVar[models.Manager[Any]] = _NoRows()

    class Meta:
        managed = False
        default_permissions = ()
        permissions = [
            ("view_locks", "Can view locks and semaphores"),
            ("manage_locks", "Can release, pause and resize locks and semaphores"),
        ]
        base_manager_name = "objects"
        verbose_name = _("lock or semaphore")
        verbose_name_plural = _("locks and semaphores")

    def __str__(self) -> str:
        return display(*self.parts) if self.find(self.id) else self.id

    @property
    def parts(self) -> tuple[str, str | None]:
        """The name and the key. The key is None for a name without a key."""
        return split(_UNDOTTED.get(self.id, self.id))

    @classmethod
    def find(cls, id: str) -> Name | None:
        """Return the `Name` with this id, or None if the id is not valid."""
        entry = cls(id=id)
        try:
            return entry if cls.of(*entry.parts).id == id else None
        except ValueError:  # such as a name that is too long
            return None

    @classmethod
    def of(cls, name: str, key: str | None = None) -> Name:
        """Return the `Name` for a name, or for the key `key` of a policy."""
        quoted = keys_of("", name, key).quoted
        return cls(id=_DOTS.get(quoted, quoted))
