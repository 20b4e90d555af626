"""`manage.py locks run`, which is flock(1) for several hosts, in processes of its own."""

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from django_redis_sync import Lock, Semaphore
from django_redis_sync.management import runner
from django_redis_sync.operators import actions
from django_redis_sync.operators.status import status_of
from tests.behaviour.both import eventually
from tests.support import worker_processes

ROOT = Path(__file__).resolve().parent.parent
LEASE = 3.0

Run = Callable[..., worker_processes.Process]


@pytest.fixture
def run(raw: redis.Redis, tmp_path: Path) -> Iterator[Run]:
    """Return a function that starts `locks run` with leases of LEASE seconds.

    After the test, kill the processes that are left.
    """
    (tmp_path / "quick_settings.py").write_text(
        "from tests.settings import *\n"
        f"REDIS_SYNC = {{**REDIS_SYNC, 'TIMEOUT': {LEASE}, "
        "'SEMAPHORES': {'named': {'limit': 2}, "
        f"'with-timeout': {{'limit': 1, 'timeout': {LEASE}}}}}}}\n"
    )
    env = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}:{ROOT}",
        "DJANGO_SETTINGS_MODULE": "quick_settings",
        "PYTHONWARNINGS": "",
    }
    started: list[worker_processes.Process] = []

    def start(*words: str, **more: str) -> worker_processes.Process:
        started.append(
            worker_processes.Process(
                *("-m", "django", "locks", "run", *words),
                env={**env, **more},
                cwd=tmp_path,
                errors=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def ended(process: worker_processes.Process, seconds: float = 60) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err


def taken(name: str) -> bool:
    return bool(status_of(name).holding)


def test_run_passes_on_the_output_and_exit_code_of_the_command(run: Run) -> None:
    script = 'echo "$INHERITED $REDIS_SYNC_NAME $REDIS_SYNC_FENCE $@"; exit 7'
    words = ("job", "--", "sh", "-c", script, "sh", "-v", "--limit", "--", "3")
    code, out, err = ended(run(*words, INHERITED="kept"))
    own, name, fence, *arguments = out.split()
    assert (code, own, name, err) == (7, "kept", "job", "")
    assert int(fence) > 10**15
    assert arguments == ["-v", "--limit", "--", "3"]
    assert not taken("job")


def test_second_run_waits_until_the_first_has_ended(run: Run, tmp_path: Path) -> None:
    script = "echo in $0; sleep 0.6; echo out $0"
    both = [run("job", "--", "sh", "-c", f"({script}) >> log", name) for name in ("a", "b")]
    assert [ended(process)[0] for process in both] == [0, 0]
    words = (tmp_path / "log").read_text().split()
    assert words[::2] == ["in", "out", "in", "out"]
    assert words[1] == words[3] != words[5] == words[7]


def test_skip_does_not_run_the_command_while_the_name_is_taken(run: Run) -> None:
    with Lock("job"):
        assert ended(run("job", "--skip", "--", "echo", "never")) == (0, "", "")
        start = time.monotonic()
        assert ended(run("job", "--skip", "--wait", "0.5", "--", "echo", "never"))[:2] == (0, "")
        assert time.monotonic() - start > 0.5


def test_run_without_a_permit_in_time_exits_with_75_and_the_reason(run: Run) -> None:
    with Lock("job"):
        code, out, err = ended(run("job", "--wait", "0.2", "--", "echo", "never"))
    assert (code, out) == (75, "")
    assert err == "job was not acquired: no permit became free in time.\n"
    actions.pause("job")
    code, out, err = ended(run("job", "--wait", "0", "--", "echo", "never"))
    assert (code, err) == (75, "job was not acquired: an operator paused the name.\n")


def test_limit_lets_several_commands_run_at_once(run: Run) -> None:
    with Semaphore("many", 2), Semaphore("named", 2):
        assert ended(run("many", "--limit", "2", "--wait", "0", "--", "true"))[0] == 0
        assert ended(run("named", "--wait", "0", "--", "true"))[0] == 0


@pytest.mark.parametrize("name", ["job", "with-timeout"])
def test_run_renews_the_lease_until_the_command_ends(run: Run, name: str) -> None:
    process = run(name, "--", "sleep", str(2.5 * LEASE))
    eventually(lambda: taken(name))
    start, last = time.monotonic(), 0.0
    while taken(name):
        last = time.monotonic() - start
        time.sleep(0.05)
    assert last > 2 * LEASE
    assert ended(process)[0] == 0


def test_ctrl_z_does_not_suspend_the_process_that_renews(raw: redis.Redis) -> None:
    """The job has a process group of its own below its parent, as in a shell with job control.

    In an orphaned process group, the kernel ignores SIGTSTP.
    """
    code = """if True:
        import os, signal, subprocess, sys, time
        words = [sys.executable, "-m", "django", "locks", "run", "job", "--", "sh", "-c"]
        words += ["echo up; read line; exit 3"]
        with subprocess.Popen(
            words, preexec_fn=os.setpgrp, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as job:
            job.stdout.readline()
            os.killpg(job.pid, signal.SIGTSTP)
            _, status = os.waitpid(job.pid, os.WUNTRACED | os.WNOHANG)
            for _ in range(20):
                time.sleep(0.1)
                _, status = os.waitpid(job.pid, os.WUNTRACED | os.WNOHANG)
                if status:
                    job.kill()
                    sys.exit("it was stopped")
            job.communicate(b"go on\\n")
            sys.exit(job.returncode)
    """
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120
    )
    assert 3 == done.returncode, done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_run_forwards_signals_to_the_command(run: Run, number: signal.Signals) -> None:
    script = f"trap 'echo got it; exit 3' {number.name[3:]}; echo up; while :; do sleep 0.05; done"
    process = run("job", "--", "sh", "-c", script)
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    process.send_signal(number)
    assert ended(process)[:2] == (3, "got it\n")
    assert not taken("job")


def test_run_exits_with_128_plus_the_signal_that_killed_the_command(run: Run) -> None:
    assert ended(run("job", "--", "sh", "-c", "kill -9 $$"))[0] == 137


def test_signal_during_the_wait_removes_the_waiter(run: Run) -> None:
    with Lock("job"):
        process = run("job", "--", "echo", "never")
        eventually(lambda: status_of("job").waiting)
        process.terminate()
        assert ended(process)[:2] == (128 + signal.SIGTERM, "")
        assert not status_of("job").waiting


def test_lost_lease_ends_the_command_and_its_children(run: Run, tmp_path: Path) -> None:
    slow = "trap 'sleep 0.5; exit' TERM; sleep 60 & echo $! > pid; wait"
    process = run("job", "--", "sh", "-c", slow)
    eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    clear("job")
    code, _, err = ended(process)
    assert code == 76
    assert 1 == err.count("The permit is lost: ending the command.\n")
    eventually(lambda: not alive(int((tmp_path / "pid").read_text())))


def clear(name: str) -> None:
    status = status_of(name)
    actions.clear(status, [holder.token for holder in status.holders])


def test_lost_lease_kills_a_command_that_ignores_sigterm(
    raw: redis.Redis, settings: Any, monkeypatch: pytest.MonkeyPatch, capfd: Any, tmp_path: Path
) -> None:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "TIMEOUT": LEASE}
    monkeypatch.setattr(runner, "PATIENCE", 0.5)
    ready = tmp_path / "ready"
    threading.Thread(target=lambda: eventually(ready.exists) and clear("job")).start()
    order = runner.RunOptions("job", None, None, False, None, None)
    before = signal.getsignal(signal.SIGTERM)
    script = f"trap 'echo no' TERM; : > {ready}; while :; do sleep 0.05; done"
    assert runner.run(order, ["sh", "-c", script], io.StringIO()) == 76
    assert capfd.readouterr().out == "no\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_killed_run_ends_its_command_and_frees_the_name_within_the_lease(
    run: Run, tmp_path: Path
) -> None:
    process = run("job", "--", "sh", "-c", "echo $$ > pid; exec sleep 60")
    eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    process.kill()
    start = time.monotonic()
    with Lock("job", blocking_timeout=30):
        assert time.monotonic() - start < LEASE + 5
    if sys.platform == "linux":
        eventually(lambda: not alive(int((tmp_path / "pid").read_text())))


def pids(folder: Path, *names: str) -> list[int]:
    """Return the process ids that the command wrote into these files. Wait for the files."""
    files = [folder / name for name in names]
    eventually(lambda: all(file.exists() and file.read_text().strip() for file in files))
    return [int(file.read_text()) for file in files]


needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

FAMILY = """
sleep 61 & echo $! > child
setsid sh -c 'echo $$ > apart; exec sleep 62' > /dev/null 2>&1 &
wait
"""


@needs_linux
@pytest.mark.parametrize("how", ["killed", "lost"])
def test_process_group_of_the_command_ends_with_the_permit(
    run: Run, tmp_path: Path, how: str
) -> None:
    """A process that left the group by `setsid` survives."""
    process = run("job", "--", "sh", "-c", FAMILY)
    child, apart = pids(tmp_path, "child", "apart")
    if how == "killed":
        process.kill()
        with Lock("job", blocking_timeout=30):
            eventually(lambda: not alive(child))
    else:
        clear("job")
        assert 76 == ended(process)[0]
        eventually(lambda: not alive(child))
    assert alive(apart)
    os.kill(apart, signal.SIGKILL)


@needs_linux
def test_process_group_ends_when_its_watchdog_is_killed(run: Run, tmp_path: Path) -> None:
    process = run("job", "--", "sh", "-c", "echo $PPID > dog; sleep 61 & echo $! > child; wait")
    dog, child = pids(tmp_path, "dog", "child")
    os.kill(dog, signal.SIGKILL)
    assert 137 == ended(process)[0]
    eventually(lambda: not alive(child))


def test_process_detached_by_the_command_survives_the_command(run: Run, tmp_path: Path) -> None:
    """The permit is released when the command itself ends."""
    script = "setsid sh -c 'echo $$ > left; exec sleep 30' >/dev/null 2>&1 & sleep 0.3; exit 5"
    assert 5 == ended(run("job", "--", "sh", "-c", script))[0]
    (left,) = pids(tmp_path, "left")
    assert alive(left) and not taken("job")
    os.kill(left, signal.SIGKILL)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_min_hold_keeps_the_name_taken_for_the_period(run: Run) -> None:
    period = ["job", "--skip", "--min-hold", "60", "--", "echo", "ran"]
    assert ended(run(*period))[:2] == (0, "ran\n")
    assert ended(run(*period))[:2] == (0, "")
    assert status_of("job").holders[0].state == "kept"


@pytest.mark.parametrize(("command", "code"), [("no-such-command", 127), ("/etc/passwd", 126)])
def test_command_that_can_not_start_gives_the_exit_code_of_a_shell(
    run: Run, command: str, code: int
) -> None:
    found = ended(run("job", "--min-hold", "60", "--", command))
    assert found[0] == code
    assert found[2].startswith(command) and found[2].count("\n") == 1
    assert not taken("job")  # despite min_hold: another host may have the command


def test_run_prints_one_line_and_starts_nothing_while_redis_is_down(run: Run) -> None:
    dead = {"DJANGO_REDIS_SYNC_TEST_URL": "redis://me:secret@127.0.0.1:1/0"}
    code, out, err = ended(run("job", "--", "echo", "never", **dead))
    assert (code, out, err.count("\n")) == (69, "", 1)
    assert "LOCATION in CACHES" in err and "secret" not in err


def test_holder_label_has_no_arguments_of_the_command(run: Run) -> None:
    process: Any = run("job", "--", "sleep", "30.123")
    eventually(lambda: taken("job"))
    (holder,) = status_of("job").holders
    assert holder.label["label"] == "locks run: sleep"
    process.terminate()
    assert ended(process)[0] == 128 + signal.SIGTERM


def test_paused_name_counts_as_taken(run: Run) -> None:
    actions.pause("job")
    assert (0, "") == ended(run("job", "--skip", "--", "false"))[::2]
    assert 75 == ended(run("job", "--wait", "0", "--", "false"))[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_a_command_that_is_starting(run: Run, number: signal.Signals) -> None:
    process = run("job", "--", "sleep", "60")
    eventually(lambda: taken("job"))
    process.send_signal(number)
    assert 128 + number == ended(process)[0]
    eventually(lambda: not taken("job"))


@pytest.mark.parametrize("ms", [0, 3, 6, 9, 12, 15])
def test_signal_while_the_watchdog_starts_ends_the_command(run: Run, ms: int) -> None:
    process = run("job", "--", "sleep", "60")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        pytest.skip("this system does not list the children of a process")
    end = time.monotonic() + 30
    while not children.read_text() and time.monotonic() < end:
        pass
    time.sleep(ms / 1000)
    process.send_signal(signal.SIGINT)
    assert (128 + signal.SIGINT, "") == ended(process)[::2]
    eventually(lambda: not taken("job"))
