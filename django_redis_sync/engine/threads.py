"""What the threads of this package need from the process that they run in."""

from __future__ import annotations

import logging
import sys

logger = logging.getLogger("django_redis_sync")

_warned: list[bool] = []


def uwsgi_runs_threads() -> bool | None:
    """Whether uWSGI was told to run threads; None when this process is not uWSGI's."""
    uwsgi = sys.modules.get("uwsgi")
    if uwsgi is None:
        return None
    options = {o.decode() if isinstance(o, bytes) else o for o in getattr(uwsgi, "opt", {})}
    return bool(options & {"enable-threads", "threads"})


def warn_about_uwsgi() -> None:
    """uWSGI runs no threads of ours unless told to: nothing would be renewed."""
    if uwsgi_runs_threads() is False and not _warned:
        _warned.append(True)
        logger.error("uWSGI runs without --enable-threads: leases can't be renewed")
