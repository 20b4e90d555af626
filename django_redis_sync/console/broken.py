"""When Redis can't be reached, or the settings are wrong: what the pages say instead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext as _
from redis.exceptions import RedisError

from .. import conf
from ..engine.commands import forget
from ..engine.server import server_of
from ..exceptions import SyncError
from ..operators.words import without_secrets


class Broken(Exception):
    """Redis can't be reached, or the settings are wrong. `said`: the text for people."""

    def __init__(self, said: str, remedy: str) -> None:
        super().__init__(said)
        self.said, self.remedy = without_secrets(said), remedy


@contextmanager
def asking() -> Iterator[None]:
    """Errors while Redis is asked, raised as Broken."""
    correct = _("Correct REDIS_SYNC or CACHES in the settings, then restart the site.")
    try:
        _connect()
        yield
    except ImproperlyConfigured as error:
        raise Broken(str(error), correct) from error
    except _Unusable as error:
        said = _("The connection settings can’t be used (%(kind)s).") % {"kind": error}
        raise Broken(said, correct) from error
    except (SyncError, RedisError) as error:
        remedy = _(
            "Check that the server runs and that the LOCATION of its cache is right, then load "
            "this page again. “manage.py locks doctor” says more."
        )
        raise Broken(str(error), remedy) from error


class _Unusable(Exception):
    """django-redis or redis-py choked on the settings. Their words may hold a password."""


def _connect() -> None:
    alias = conf.current().cache
    try:
        server_of(alias).pool()
    except RedisError:
        raise
    except Exception as error:
        forget(alias)
        if isinstance(error, ImproperlyConfigured):
            raise
        raise _Unusable(type(error).__name__) from None
