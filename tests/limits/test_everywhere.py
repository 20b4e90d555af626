"""Limits on real servers other than uvicorn and gunicorn with threads.

Servers that are not installed are skipped. CI installs them.
"""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import pytest

from tests.behaviour.both import eventually
from tests.limits.test_servers import (  # noqa: F401 - run with the fixture `site` of this module
    started,
    suited,
    test_permit_is_held_until_the_view_ends_even_if_the_client_has_left,
    test_permit_is_released_when_the_client_of_a_stream_disconnects,
    test_permit_is_released_when_the_response_ends_or_is_dropped,
    test_server_admits_all_requests_but_never_more_in_parallel_than_the_limit,
    test_stream_holds_its_permit_until_its_last_byte_is_sent,
)
from tests.request_site import gate
from tests.request_site.project import in_use
from tests.request_site.server import ASYNC, ROOT, SERVERS, read_rest

pytestmark = pytest.mark.usefixtures("clean_redis")


def installed(kind):
    module = {"granian_wsgi": "granian", "uwsgi": "uwsgidecorators"}.get(kind, kind)
    return find_spec(module) is not None


@pytest.fixture(scope="module", params=sorted(SERVERS.keys() - {"gunicorn", "uvicorn"}))
def site(request, tmp_path_factory):
    if not installed(request.param):
        pytest.skip(f"{request.param} is not installed")
    with started(request.param, tmp_path_factory.mktemp("site"), TIMEOUT=3) as site:
        yield site


def test_permit_is_renewed_while_the_view_runs(site):
    """The view runs for 7 s, which is more than twice the lease duration."""
    path = suited(site, "/limited/")
    with ThreadPoolExecutor(1) as clients:
        running = clients.submit(site.get, f"{path}?gate=long")
        eventually(lambda: gate.now_inside("plain") == 1)
        end = time.monotonic() + 7
        while time.monotonic() < end:
            assert 503 == site.get(path).status_code
            time.sleep(0.1)
        gate.open_gate("long")
        assert 200 == running.result().status_code
    eventually(lambda: in_use() == 0)


def test_stream_to_a_slow_client_is_cut_off_when_the_lease_ends(site):
    path = suited(site, "/flood/")
    ended_before = site.log.read_text().count("was ended")
    with site.connection(f"{path}?client=slow", 4096) as slow:
        eventually(lambda: gate.arrived("flood"))
        eventually(lambda: site.log.read_text().count("was ended") > ended_before)
        # On the other servers, a write blocks. The request keeps its permit until the client reads.
        if site.kind in (*ASYNC, "gevent"):
            eventually(lambda: in_use("flood") == 0)
        assert 100_000_000 > read_rest(slow)  # the client gets only buffered parts of the 200 MB
    eventually(lambda: in_use("flood") == 0)
    assert ended_before + 1 == site.log.read_text().count("was ended")


def test_log_of_a_server_contains_no_error_after_start_and_shutdown(site, tmp_path):
    with started(site.kind, tmp_path) as other:
        assert 200 == other.get(suited(other, "/limited/")).status_code
    log = other.log.read_text()
    assert "redis" not in log and "Traceback" not in log, log


PATCH = "from gevent import monkey; monkey.patch_all()"
SETUP = "import django; django.setup(); from django.apps import apps"
ACQUIRE = "from django_redis_sync import Lock; Lock('late').acquire(blocking=False).release()"
READY = "apps.get_app_config('django_redis_sync').ready()"


@pytest.mark.parametrize(
    ("steps", "times"),
    [
        ([SETUP, PATCH, ACQUIRE], 1),
        ([SETUP, PATCH, READY], 1),
        ([SETUP, PATCH, READY, ACQUIRE], 1),
        ([SETUP, PATCH], 0),
        ([PATCH, SETUP, ACQUIRE], 0),
    ],
)
def test_message_is_logged_if_gevent_patches_the_process_after_django_setup(steps, times):
    if not installed("gevent"):
        pytest.skip("gevent is not installed")
    words = [sys.executable, "-W", "ignore", "-c", "\n".join(steps)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert times == done.stderr.count("gevent patched this process after")
