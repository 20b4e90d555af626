"""A project whose tests run in two processes at the same time, as docs/testing.md describes it."""

import os
import re
from pathlib import Path

import pytest

from django_redis_sync import Lock
from django_redis_sync.testing import filled
from tests.support import worker_processes

ROOT = Path(__file__).parents[1]
DOC = (ROOT / "docs" / "testing.md").read_text()
#: The mixin of the docs that gives each process its own prefix, and the setting for pytest-xdist.
MIXIN = next(b for b in re.findall(r"```python\n(.*?)```", DOC, re.S) if "class OwnNames" in b)
PREFIX = next(b for b in re.findall(r"```python\n(.*?)```", DOC, re.S) if "XDIST_WORKER" in b)

SETTINGS = """
import multiprocessing

# Not every version of Django can use the default of every version of Python.
multiprocessing.set_start_method("fork", force=True)
SECRET_KEY = "only for tests"
ROOT_URLCONF = "suite_urls"
INSTALLED_APPS = ["django.contrib.contenttypes", "django_redis_sync"]
MIDDLEWARE = ["django_redis_sync.middleware.ConcurrencyLimitMiddleware"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "suite.sqlite3"}}
CACHES = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": os.environ["SUITE_REDIS"],
    }
}
"""

URLS = """
from django.http import HttpResponse
from django.urls import path

from django_redis_sync import semaphore_required


@semaphore_required("exports", limit=3)
def export(request):
    return HttpResponse("done")


urlpatterns = [path("export/", export)]
"""

TESTS = """
import os
import time
from contextlib import nullcontext
from pathlib import Path

from django.test import TestCase

from django_redis_sync import Lock, RLock
from django_redis_sync.testing import filled, without_redis

OwnNames = object if os.environ["SUITE_NAMES"] != "own" else OwnNames
helper = without_redis() if os.environ["SUITE_NAMES"] == "no Redis" else lambda case: case


def meet(directory):
    "Wait until a test of the other process is here, too."
    (Path(directory) / str(os.getpid())).touch()
    deadline = time.monotonic() + 200
    while len(list(Path(directory).iterdir())) < 2:
        assert time.monotonic() < deadline, "the other process does not come"
        time.sleep(0.01)


class Cases(OwnNames):
    @classmethod
    def setUpTestData(cls):
        cls.lock, cls.rows = Lock("import"), RLock("rows", blocking_timeout=0)

    def test_full(self):
        with filled("exports"), self.lock, self.rows, self.rows:
            meet("inside")
            self.assertEqual(503, self.client.get("/export/").status_code)
            meet("later")
        self.assertEqual(200, self.client.get("/export/").status_code)

    def test_lock_again(self):
        self.test_full()

    async def test_async(self):
        async with self.lock:
            with filled("exports"):
                meet("async")
                self.assertEqual(503, (await self.async_client.get("/export/")).status_code)


@helper
class One(Cases, TestCase):
    pass


@helper
class Two(Cases, TestCase):
    pass
"""

RUNNERS = {
    "django": ("-m", "django", "test", "--parallel", "2"),
    # Each worker runs all tests, so that the tests meet.
    "xdist": ("-m", "pytest", "-q", "-n", "2", "--dist", "each", "-p", "no:cacheprovider"),
}


@pytest.mark.parametrize(
    ("runner", "names"),
    [
        *(("django", "no Redis"), ("django", "own"), ("xdist", "prefix")),
        pytest.param("xdist", "no Redis", marks=pytest.mark.deep),
    ],
)
def test_parallel_tests_do_not_meet(tmp_path, new_server, runner, names):
    own = PREFIX if names == "prefix" else "import os\nREDIS_SYNC = {}\n"
    (tmp_path / "suite_settings.py").write_text(own + SETTINGS)
    (tmp_path / "suite_urls.py").write_text(URLS)
    (tmp_path / "test_suite.py").write_text(MIXIN + TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for place in ("inside", "later", "async"):
        (tmp_path / place).mkdir()
    url = "redis://127.0.0.1:1/0" if names == "no Redis" else new_server().url
    found = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST")}
    own_environment = {
        "DJANGO_SETTINGS_MODULE": "suite_settings",
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
        "SUITE_REDIS": url,
        "SUITE_NAMES": names,
    }
    done = worker_processes.run(
        *RUNNERS[runner], cwd=tmp_path, env=found | own_environment, timeout=280
    )
    assert 0 == done.returncode, done.stdout[-3000:] + done.stderr[-3000:]
    assert re.search("Ran 6 tests|12 passed", done.stdout + done.stderr)


def test_filled_says_what_parallel_tests_need(raw):
    text = r"'code' can't be filled: .*own KEY_PREFIX"
    with filled("code", 1), pytest.raises(AssertionError, match=text):
        filled("code", 1).__enter__()
    with Lock("code", blocking=False):
        pass
