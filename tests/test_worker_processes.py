"""Processes started by worker_processes behave like processes that Python starts."""

import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support import worker_processes

pytestmark = pytest.mark.tools


def test_process_gets_the_given_arguments_folder_and_environment(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("import sys; print(*sys.argv[1:], __name__)")
    code = "import os, sys; print(*sys.argv, os.environ['ONE'], os.getcwd(), 'TWO' in os.environ)"
    done = worker_processes.run("-c", code, "a", "b", cwd=tmp_path, env={"ONE": "1"})
    assert (f"-c a b 1 {tmp_path} False\n", "") == (done.stdout, done.stderr)
    assert "x y __main__\n" == worker_processes.run("-m", "beside", "x", "y", cwd=tmp_path).stdout
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert "__main__\n" == worker_processes.run("-m", "beside", env=env).stdout


def test_process_starts_without_settings_and_threads() -> None:
    code = "import threading; from django.conf import settings\n"
    code += "print(settings.configured, threading.active_count())"
    assert "False 1\n" == worker_processes.run("-c", code).stdout


def test_process_reports_its_exit_code_and_output() -> None:
    code = "import atexit, sys; atexit.register(print, 'bye'); sys.exit(7)"
    done = worker_processes.run("-c", code)
    assert (7, "bye\n") == (done.returncode, done.stdout)
    code = "import warnings; warnings.warn('x')"
    assert 1 == worker_processes.run("-W", "error", "-c", code).returncode
    with worker_processes.Process("-c", "print('up', flush=True); input()") as process:
        assert "up\n" == process.line()
        assert process.pid == os.getpgid(process.pid)
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.1)
        process.terminate()
        assert -signal.SIGTERM == process.wait(10) == process.poll()


def test_processes_can_run_at_the_same_time() -> None:
    def one(number: int) -> str:
        return worker_processes.run("-c", "import sys; print(sys.argv[1])", number).stdout

    with ThreadPoolExecutor(8) as threads:
        assert [f"{number}\n" for number in range(12)] == list(threads.map(one, range(12)))
