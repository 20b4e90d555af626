"""`manage.py locks run`: run a command while holding a permit. Each test starts processes."""

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
from django.core.management import execute_from_command_line

from django_redis_sync import Lock, Semaphore
from django_redis_sync.management import runner
from tests.behaviour.both import eventually
from tests.support import worker_processes
from tests.support.commands import is_alive
from tests.support.operators import act, locks, status_of

ROOT = Path(__file__).resolve().parents[2]
LEASE = 3.0
Run = Callable[..., worker_processes.Process]
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@pytest.fixture
def run(raw: redis.Redis, tmp_path: Path) -> Iterator[Run]:
    """Return a function that starts `locks run` with leases of LEASE seconds.

    After the test, kill the processes that are left.
    """
    semaphores = {"named": {"limit": 2}, "with-timeout": {"limit": 1, "timeout": LEASE}}
    semaphores["paced"] = {"rate": "2/h"}
    (tmp_path / "quick_settings.py").write_text(
        "from tests.settings import *\n"
        f"REDIS_SYNC = {{**REDIS_SYNC, 'TIMEOUT': {LEASE}, 'SEMAPHORES': {semaphores}}}\n"
    )
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "PYTHONWARNINGS": ""}
    env["DJANGO_SETTINGS_MODULE"] = "quick_settings"
    started: list[worker_processes.Process] = []

    def start(*words: str, **more: str) -> worker_processes.Process:
        command = ("-m", "django", "locks", "run", *words)
        options: Any = {"env": {**env, **more}, "cwd": tmp_path, "errors": True}
        started.append(worker_processes.Process(*command, **options))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def ended(process: worker_processes.Process) -> tuple[int | None, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def taken(name: str) -> bool:
    return bool(status_of(name).holding)


def pids(folder: Path, *names: str) -> list[int]:
    """Wait until the command has written process ids to these files. Return the ids."""
    files = [folder / name for name in names]
    eventually(lambda: all(file.exists() and file.read_text().strip() for file in files))
    return [int(file.read_text()) for file in files]


def test_locks_run_action_forwards_the_output_and_exit_code_of_the_command(run: Run) -> None:
    script = 'echo "$INHERITED $REDIS_SYNC_NAME $REDIS_SYNC_FENCE $@"; exit 7'
    words = ("job", "--", "sh", "-c", script, "sh", "-v", "--limit", "--", "3")
    code, out, err = ended(run(*words, INHERITED="kept"))
    own, name, fence, *arguments = out.split()
    assert (code, own, name, err) == (7, "kept", "job", "")
    assert int(fence) > 10**15
    assert arguments == ["-v", "--limit", "--", "3"]
    assert not taken("job")
    assert 137 == ended(run("job", "--", "sh", "-c", "kill -9 $$"))[0]


FULL, LATE = "all permits are in use", "no permit became free in time"
PAUSED = "an operator paused the name"


@pytest.mark.parametrize(
    ("name", "words", "code", "reason"),
    [
        ("full", "--skip", 0, ""),
        ("full", "--skip --wait 0.5", 0, ""),
        ("full", "--wait 0.5", 75, LATE),
        ("full", "--wait 0", 75, FULL),
        ("full", "--wait 0 --limit 2", 75, FULL),
        ("full", "--wait 0 --limit 3", 0, "ran"),
        ("named", "--wait 0", 0, "ran"),
        ("paused", "--skip", 0, ""),
        ("paused", "--wait 0.5", 75, PAUSED),
        ("paused", "--wait 0", 75, PAUSED),
    ],
)
def test_locks_run_action_starts_the_command_only_after_a_permit_is_granted(
    run: Run, name: str, words: str, code: int, reason: str
) -> None:
    act("pause", "paused")
    start = time.monotonic()
    with Semaphore("full", 2), Semaphore("full", 2), Semaphore("named", 2):
        found = ended(run(name, *words.split(), "--", "echo", "ran"))
    err = f"{name} was not acquired: {reason}.\n" if code else ""
    assert (code, f"{reason}\n" if reason == "ran" else "", err) == found
    assert time.monotonic() - start >= (0.5 if "0.5" in words else 0)


def test_skip_is_quiet_only_if_no_permit_is_available(run: Run) -> None:
    """A waiter that an operator clears is another case, and a failure of the command."""
    with Lock("job"):
        process = run("job", "--skip", "--wait", "60", "--", "echo", "ran")
        eventually(lambda: status_of("job").waiting)
        (waiter,) = status_of("job").waiters
        locks("clear", "job", "--holder", waiter.id, "--no-input")
        why = "job was not acquired: an operator cleared this waiter.\n"
        assert (75, "", why) == ended(process)


def test_locks_run_action_waits_for_the_rate_of_the_settings_without_a_limit(run: Run) -> None:
    with Semaphore("paced", rate="2/h"):
        assert (0, "ran\n", "") == ended(run("paced", "--wait", "0", "--", "echo", "ran"))
    code, out, err = ended(run("paced", "--wait", "0", "--", "echo", "ran"))
    why = "paced was not acquired: the rate allows no permit yet. The next permit comes in 59 min "
    assert (75, "") == (code, out) and err.startswith(why), err
    assert status_of("paced").conflicting_limit is None


def test_min_hold_keeps_the_name_locked_after_the_command_ends(run: Run) -> None:
    period = ["job", "--skip", "--min-hold", "60", "--", "echo", "ran"]
    assert [(0, "ran\n"), (0, "")] == [ended(run(*period))[:2] for _ in range(2)]
    assert status_of("job").holders[0].state == "kept"


@pytest.mark.parametrize(("command", "code"), [("no-such-command", 127), ("/etc/passwd", 126)])
def test_locks_run_action_exits_with_126_or_127_if_the_command_can_not_start(
    run: Run, command: str, code: int
) -> None:
    found = ended(run("job", "--min-hold", "60", "--", command))
    assert found[0] == code
    assert found[2].startswith(command) and found[2].count("\n") == 1
    assert not taken("job"), "min_hold does not apply: another host may have the command"


def test_locks_run_action_starts_no_command_while_redis_is_down(run: Run) -> None:
    dead = {"DJANGO_REDIS_SYNC_TEST_URL": "redis://me:secret@127.0.0.1:1/0"}
    code, out, err = ended(run("job", "--", "echo", "never", **dead))
    assert (code, out, err.count("\n")) == (69, "", 1)
    assert "LOCATION in CACHES" in err and "secret" not in err


def test_locks_run_action_renews_the_lease_until_the_command_ends(run: Run) -> None:
    names = ["job", "with-timeout"]
    processes = [run(name, "--", "sleep", str(2.5 * LEASE)) for name in names]
    for name in names:
        eventually(lambda name=name: taken(name))
    assert {"locks run: sleep"} == {status_of(n).holders[0].label["label"] for n in names}
    start, last = time.monotonic(), 0.0
    while all(map(taken, names)):
        last = time.monotonic() - start
        time.sleep(0.05)
    assert last > 2 * LEASE
    assert [0, 0] == [ended(process)[0] for process in processes]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_locks_run_action_forwards_signals_to_the_command(run: Run, number: signal.Signals) -> None:
    script = f"trap 'echo got it; exit 3' {number.name[3:]}; echo up; while :; do sleep 0.05; done"
    process = run("job", "--", "sh", "-c", script)
    assert process.line() == "up\n"
    process.send_signal(number)
    assert ended(process)[:2] == (3, "got it\n")
    assert not taken("job")


@needs_linux
def test_ctrl_z_does_not_suspend_the_process_that_renews_the_lease(run: Run) -> None:
    process = run("job", "--", "sh", "-c", "echo up; read line; exit 3")
    assert process.line() == "up\n"
    # SIGTSTP suspends no process here, because the process group is orphaned. So check that
    # `locks run` catches the signal.
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    assert int(caught.split()[1], 16) >> (signal.SIGTSTP - 1) & 1
    process.send_signal(signal.SIGTSTP)
    assert ended(process)[0] == 3


def test_locks_run_action_stops_waiting_for_a_permit_when_it_gets_a_signal(run: Run) -> None:
    with Lock("job"):
        processes = [run("job", "--", "echo", "ran") for _ in range(2)]
        eventually(lambda: 2 == status_of("job").waiting)
        processes[0].terminate()
        assert (128 + signal.SIGTERM, "") == ended(processes[0])[:2]
        assert 1 == status_of("job").waiting
    assert (0, "ran\n", "") == ended(processes[1])


@needs_linux
@pytest.mark.parametrize("ms", [0, 2, 4, 6, 9, 12, 15, 30])
def test_signal_ends_a_command_that_is_starting(run: Run, ms: int) -> None:
    process = run("job", "--", "sleep", "60")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    eventually(children.read_text)
    time.sleep(ms / 1000)
    process.send_signal(signal.SIGINT)
    assert (128 + signal.SIGINT, "") == ended(process)[::2]
    assert not taken("job")


def test_each_signal_that_comes_while_the_command_starts_is_passed_on(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come before `locks run` knows the process of the command."""
    early, passed = [signal.SIGUSR1, signal.SIGWINCH, signal.SIGTERM], list[int]()

    class Starting(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            for number in early:
                signal.raise_signal(number)

    killpg = os.killpg
    monkeypatch.setattr(runner.subprocess, "Popen", Starting)
    monkeypatch.setattr(os, "killpg", lambda group, n: passed.append(n) or killpg(group, n))
    with pytest.raises(SystemExit):
        execute_from_command_line(["manage.py", "locks", "run", "job", "--", "sleep", "60"])
    assert early == passed, "a signal did not reach the command, or not in order"
    assert not taken("job")


#: A command with three children. `worker` ends at SIGTERM, and the command waits for that. `child`
#: ignores SIGTERM. `apart` leaves the process group.
FAMILY = """
sh -c 'trap "echo > told; exit" TERM; echo $$ > worker; while :; do sleep 0.05; done' & worker=$!
trap 'wait $worker; exit' TERM
(trap '' TERM; exec sleep 61) & echo $! > child
setsid sh -c 'echo $$ > apart; exec sleep 62' > /dev/null 2>&1 &
echo $$ > own
wait
"""


@needs_linux
@pytest.mark.promise(7)
@pytest.mark.parametrize("how", ["killed", "lost"])
def test_process_group_of_the_command_ends_when_the_permit_ends(
    run: Run, tmp_path: Path, how: str
) -> None:
    """A child that left the process group with `setsid` survives. `how`: how the permit ends."""
    process = run("job", "--", "sh", "-c", FAMILY)
    own, child, apart, worker = pids(tmp_path, "own", "child", "apart", "worker")
    if how == "killed":
        process.kill()
        start = time.monotonic()
        with Lock("job", blocking_timeout=30):
            assert time.monotonic() - start < LEASE + 5
            eventually(lambda: not is_alive(child))
    else:
        os.kill(worker, signal.SIGSTOP)
        locks("clear", "job", "--no-input")
        code, _, err = ended(process)
        assert (76, 1) == (code, err.count("The permit is lost: ending the command.\n"))
        eventually(lambda: not is_alive(child))
        assert (tmp_path / "told").exists(), "the stopped worker was killed without SIGTERM"
    for process_id in (own, worker):
        eventually(lambda process_id=process_id: not is_alive(process_id))
    assert is_alive(apart)
    os.kill(apart, signal.SIGKILL)


def test_lost_lease_kills_a_command_that_ignores_sigterm(
    raw: redis.Redis, settings: Any, monkeypatch: pytest.MonkeyPatch, capfd: Any, tmp_path: Path
) -> None:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "TIMEOUT": LEASE}
    monkeypatch.setattr(runner, "PATIENCE", 0.5)
    ready = tmp_path / "ready"

    def clear() -> None:
        eventually(ready.exists)
        locks("clear", "job", "--no-input")

    threading.Thread(target=clear).start()
    before = signal.getsignal(signal.SIGTERM)
    script = f"trap 'echo no' TERM; : > {ready}; while :; do sleep 0.05; done"
    with pytest.raises(SystemExit) as ended:
        execute_from_command_line(["manage.py", "locks", "run", "job", "--", "sh", "-c", script])
    assert 76 == ended.value.code
    assert capfd.readouterr().out == "no\n"
    assert signal.getsignal(signal.SIGTERM) is before


@needs_linux
def test_permit_is_released_when_the_command_ends_before_its_child(
    run: Run, tmp_path: Path
) -> None:
    script = "sleep 30 > /dev/null 2>&1 & echo $! > left; exit 5"
    assert 5 == ended(run("job", "--", "sh", "-c", script))[0]
    (left,) = pids(tmp_path, "left")
    assert is_alive(left) and not taken("job")
    os.kill(left, signal.SIGKILL)
