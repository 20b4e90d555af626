from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class DjangoRedisSyncConfig(AppConfig):
    name = "django_redis_sync"
    verbose_name = _("Locks and semaphores")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks  # noqa: F401 - registers them
        from .engine.threads import warn_about_this_process

        warn_about_this_process()
