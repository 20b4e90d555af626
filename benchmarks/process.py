"""Measure the import time and the memory that the app adds to a process."""

from __future__ import annotations

import json
import subprocess
import sys

from .report import Table, median

_PROBE = """
import json, re, sys, time
import django
from django.conf import settings
apps = ["django.contrib.contenttypes", "django.contrib.auth"] + sys.argv[1].split()
settings.configure(INSTALLED_APPS=apps, CACHES={"default": {
    "BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1"}})
import django_redis.cache, django_redis.client
start = time.perf_counter()
django.setup()
if sys.argv[1]:
    import django_redis_sync
    django_redis_sync.Lock
seconds = time.perf_counter() - start
resident = re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())
print(json.dumps([seconds, int(resident[1]) / 1024]))
"""


def process(url: str, quick: bool) -> Table:
    table = Table("What the app adds to django.setup() of a new process", "reported")
    found: dict[str, list[tuple[float, float]]] = {"": [], "django_redis_sync": []}
    for _ in range(3 if quick else 9):
        for app, figures in found.items():
            command = [sys.executable, "-c", _PROBE, app]
            out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            seconds, megabytes = json.loads(out)
            figures.append((seconds, megabytes))
    base = found[""]
    for app, figures in found.items():
        row = {"": app or "without it", "ms": median([s for s, _ in figures]) * 1e3}
        row["more ms"] = 1e3 * median([a[0] - b[0] for a, b in zip(figures, base, strict=True)])
        row["more MB"] = median([a[1] - b[1] for a, b in zip(figures, base, strict=True)])
        table.rows.append(row)
    return table
