"""A process that worker_processes starts behaves like a new `python` process."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support import worker_processes

pytestmark = pytest.mark.tools


def test_worker_process_gets_arguments_and_an_environment_but_no_settings(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("import sys; print(*sys.argv[1:], __name__)")
    code = "import os, sys; from django.conf import settings; "
    code += "print(*sys.argv, os.environ['ONE'], os.getcwd(), settings.configured)"
    done = worker_processes.run("-c", code, "a", "b", cwd=tmp_path, env={"ONE": "1"})
    assert (f"-c a b 1 {tmp_path} False\n", "") == (done.stdout, done.stderr)
    assert "x y __main__\n" == worker_processes.run("-m", "beside", "x", "y", cwd=tmp_path).stdout


def test_worker_process_reports_its_exit_code_and_its_output() -> None:
    code = "import atexit, sys; atexit.register(print, 'bye'); sys.exit(7)"
    done = worker_processes.run("-c", code)
    assert (7, "bye\n") == (done.returncode, done.stdout)
    assert (
        1
        == worker_processes.run(
            "-W", "error", "-c", "import warnings; warnings.warn('x')"
        ).returncode
    )
    with worker_processes.Process("-c", "print('up', flush=True); input()") as process:
        assert ("up\n", None) == (process.line(), process.poll())
        assert process.pid == os.getpgid(process.pid)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.1)
        process.terminate()
        assert -signal.SIGTERM == process.wait(10) == process.poll()
