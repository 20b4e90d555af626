"""The site on a real server, in processes of its own, ended by pid."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx

from devtools.servers import free_port

ROOT = Path(__file__).resolve().parent.parent.parent
START_SECONDS = 20


class Site:
    """gunicorn (WSGI, threads) or uvicorn (ASGI) with the site; for `options` see settings."""

    def __init__(self, kind: str, log: Path, workers: int = 1, threads: int = 8, **options):
        self.port, self.log = free_port(), log
        address = f"127.0.0.1:{self.port}"
        self.url = f"http://{address}"
        if kind == "gunicorn":
            words = ["gunicorn", "tests.request_site.wsgi", "--bind", address]
            words += ["--workers", str(workers), "--worker-class", "gthread"]
            words += ["--threads", str(threads)]
            words += ["--graceful-timeout", "2", "--no-control-socket"]
        else:
            words = ["uvicorn", "tests.request_site.asgi:application", "--host", "127.0.0.1"]
            words += ["--port", str(self.port), "--workers", str(workers), "--lifespan", "off"]
            words += ["--timeout-graceful-shutdown", "2", "--log-level", "warning"]
        self.words = [sys.executable, "-m", *words]
        self.env = {
            **os.environ,
            "SITE": json.dumps(options),
            "DJANGO_SETTINGS_MODULE": "tests.request_site.settings",
        }

    def __enter__(self) -> "Site":
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.words, cwd=ROOT, env=self.env, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        end = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/free/").status_code == 200:
                    return self
            if time.monotonic() > end or self.process.poll() is not None:
                self.__exit__()
                raise AssertionError(f"the site did not start:\n{self.log.read_text()}")
            time.sleep(0.05)

    def __exit__(self, *exc: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def get(self, path: str, **options) -> httpx.Response:
        return httpx.get(self.url + path, timeout=20, **options)

    def client(self, **options) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=20, **options)
