"""The setting REDIS_SYNC, parsed at first use and after each change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.dispatch import receiver
from django.utils.crypto import salted_hmac

from . import defaults
from .logs import logger
from .values import unknown
from .values import whole as whole

SETTING = "REDIS_SYNC"
#: Max minutes of history that are stored for one key of a policy.
MAX_MINUTES_OF_KEY = 60

_NOT_INSTALLED = (
    "django_redis_sync is not in INSTALLED_APPS: its system checks, its pages, its templates and "
    "manage.py locks are missing"
)

_PLACES = dict.fromkeys(defaults.ENTRY, "an entry of SEMAPHORES or ENDPOINTS")
_PLACES |= dict.fromkeys(defaults.REQUESTS, "REQUESTS")
_TABLE = "For all options, see django_redis_sync/defaults.py, or Settings in the documentation."


@dataclass(frozen=True, slots=True)
class Config(defaults.Settings):
    """The setting REDIS_SYNC, with defaults for the keys that are not given."""

    def keep(self, key: str | None = None) -> int:
        """Return the number of minutes for which history is stored, or 0 if STATS is off. If `key`
        is a key of a policy, the number is at most MAX_MINUTES_OF_KEY, because a policy can have
        many keys."""
        minutes = int(self.stats_hours * 60) if self.stats else 0
        return minutes if key is None else min(minutes, MAX_MINUTES_OF_KEY)

    def prefix(self, alias: str) -> str:
        """Return the prefix of the library's keys in the cache `alias`."""
        if self.key_prefix is not None:
            return self.key_prefix
        own = settings.CACHES.get(alias, {}).get("KEY_PREFIX")
        return f"{own}:sync" if own else "sync"

    def entries(self) -> list[tuple[str, Any]]:
        """Return the names in SEMAPHORES and in ENDPOINTS, each with its entry. The entries are not
        checked. The name of an entry in ENDPOINTS is its item "name", or else its pattern."""
        found: list[tuple[str, Any]] = list(self.semaphores.items())
        for endpoint, entry in self.endpoints.items():
            name = entry.get("name") or endpoint if isinstance(entry, Mapping) else entry
            found += [(name, entry)] if isinstance(name, str) else []
        return found

    def names(self) -> set[str]:
        """Return the names in SEMAPHORES and in ENDPOINTS."""
        return {name for name, _ in self.entries()}

    def named(self, name: str) -> Mapping[str, Any]:
        """Return a name's entry in SEMAPHORES. Raise ImproperlyConfigured if it isn't a dict."""
        given = self.semaphores.get(name, defaults.NOTHING)
        if given is not defaults.NOTHING:
            reject_unknown(f"{SETTING}['SEMAPHORES'][{name!r}]", given, defaults.ENTRY)
        return given


def reject_unknown(where: str, given: Any, known: Mapping[str, Any]) -> None:
    """Raise ImproperlyConfigured if `given` is not a dict of known options."""
    if not isinstance(given, Mapping):
        limit = given if isinstance(given, int) else 3
        like = f" such as {{'limit': {limit!r}}}" if known is defaults.ENTRY else ""
        raise ImproperlyConfigured(f"{where} must be a dict{like}, not {given!r}.")
    if wrong := unknown(given, known, _PLACES):
        raise ImproperlyConfigured(f"{where} has unknown keys: {wrong}. {_TABLE}")


@cache
def current() -> Config:
    """Return the current configuration. Raise ImproperlyConfigured if a key or value is wrong."""
    if apps.ready and not apps.is_installed(__package__):
        logger.warning(_NOT_INSTALLED)
    keys = {
        name.upper(): row._replace(name=name.upper()) for name, row in defaults.SETTINGS.items()
    }
    values = _filled(SETTING, getattr(settings, SETTING, {}), keys)
    requests = _filled(f"{SETTING}['REQUESTS']", values["REQUESTS"], defaults.REQUESTS)
    values["REQUESTS"] = requests
    return Config(**{key.lower(): value for key, value in values.items()})


def _filled(
    where: str, given: Mapping[str, Any], rows: Mapping[str, defaults.Row]
) -> dict[str, Any]:
    """Check the given options. Return them, with the defaults of the options that are missing."""
    reject_unknown(where, given, rows)
    try:
        return {name: row.checked(given.get(name, row.default)) for name, row in rows.items()}
    except (TypeError, ValueError) as error:
        raise ImproperlyConfigured(f"{where}: {error}.") from error


def require_redis(what: str) -> None:
    """Raise ImproperlyConfigured if WITHOUT_REDIS is set. `what`: something that needs Redis."""
    if current().without_redis:
        raise ImproperlyConfigured(
            f"{SETTING}['WITHOUT_REDIS'] is True, so each process counts its own permits, and "
            f"others can't see them: {what} needs Redis."
        )


_forgets: list[Callable[[], None]] = []


def on_change(forget: Callable[[], None]) -> Callable[[], None]:
    """Call `forget` whenever REDIS_SYNC or CACHES changes, for example by `override_settings`."""
    _forgets.append(forget)
    return forget


@receiver(setting_changed)
def _changed(*, setting: str, **_: Any) -> None:
    if setting == "CACHES":
        # Let Django reset its caches first. Otherwise, a background thread could get an old cache
        # after `forget()`. Only tests change settings, so only tests import this module.
        from django.test.signals import clear_cache_handlers

        clear_cache_handlers(setting=setting)
    if setting in (SETTING, "CACHES"):
        for forget in _forgets:
            forget()


on_change(current.cache_clear)


def secrets() -> list[Any]:
    """Return the secret keys of the site, the oldest first: the keys of SECRET_KEY_FALLBACKS in
    reverse order, and then SECRET_KEY."""
    return [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS][::-1]


def digest(salt: str, value: str, secret: Any = None) -> str:
    """Return a hex digest of `value` that only this project can compute.

    `secret`: a secret key; by default the oldest key of `secrets()`. So if SECRET_KEY changes, the
    digests stay the same as long as the old key is in SECRET_KEY_FALLBACKS.
    """
    text = value.encode("utf-8", "surrogatepass")
    made = salted_hmac(salt, text, secret=secret or secrets()[0], algorithm="sha256")
    return str(made.hexdigest())
