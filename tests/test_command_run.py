"""`manage.py locks run`: flock(1) for a fleet, from real shells."""

import errno
import io
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from django_redis_sync import Lock, Semaphore, Unavailable
from django_redis_sync.management import runner, watchdog
from django_redis_sync.operators import actions
from django_redis_sync.operators.status import status_of
from django_redis_sync.protocol.plans import Refusal
from tests.behaviour.both import eventually
from tests.support import nursery

ROOT = Path(__file__).resolve().parent.parent
LEASE = 3.0

Run = Callable[..., nursery.Process]


@pytest.fixture
def run(raw: redis.Redis, tmp_path: Path) -> Iterator[Run]:
    """Starts `locks run`, with leases of LEASE seconds; ends what is left of it."""
    (tmp_path / "quick_settings.py").write_text(
        "from tests.settings import *\n"
        f"REDIS_SYNC = {{**REDIS_SYNC, 'TIMEOUT': {LEASE}, "
        "'SEMAPHORES': {'named': {'limit': 2}}}\n"
    )
    env = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}:{ROOT}",
        "DJANGO_SETTINGS_MODULE": "quick_settings",
        "PYTHONWARNINGS": "",
    }
    started: list[nursery.Process] = []

    def start(*words: str, **more: str) -> nursery.Process:
        started.append(
            nursery.Process(
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


def ended(process: nursery.Process, seconds: float = 60) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err


def taken(name: str) -> bool:
    return bool(status_of(name).holding)


def test_it_gives_the_commands_output_and_exit_code(run: Run) -> None:
    script = 'echo "$OF_OURS $REDIS_SYNC_NAME $REDIS_SYNC_FENCE $@"; exit 7'
    words = ("job", "--", "sh", "-c", script, "sh", "-v", "--limit", "--", "3")
    code, out, err = ended(run(*words, OF_OURS="kept"))
    own, name, fence, *arguments = out.split()
    assert (code, own, name, err) == (7, "kept", "job", "")
    assert int(fence) > 10**15
    assert arguments == ["-v", "--limit", "--", "3"]
    assert not taken("job")


def test_of_two_shells_one_runs_and_the_other_waits(run: Run, tmp_path: Path) -> None:
    script = "echo in $0; sleep 0.6; echo out $0"
    both = [run("job", "--", "sh", "-c", f"({script}) >> log", name) for name in ("a", "b")]
    assert [ended(process)[0] for process in both] == [0, 0]
    words = (tmp_path / "log").read_text().split()
    assert words[::2] == ["in", "out", "in", "out"]
    assert words[1] == words[3] != words[5] == words[7]


def test_of_two_shells_one_runs_and_the_other_skips(run: Run) -> None:
    with Lock("job"):
        assert ended(run("job", "--skip", "--", "echo", "never")) == (0, "", "")
        start = time.monotonic()
        assert ended(run("job", "--skip", "--wait", "0.5", "--", "echo", "never"))[:2] == (0, "")
        assert time.monotonic() - start > 0.5


def test_when_time_is_up_it_says_so_with_a_code_of_its_own(run: Run) -> None:
    with Lock("job"):
        code, out, err = ended(run("job", "--wait", "0.2", "--", "echo", "never"))
    assert (code, out) == (75, "")
    assert err == "job was not acquired: no permit came free in time.\n"
    actions.pause("job")
    code, out, err = ended(run("job", "--wait", "0", "--", "echo", "never"))
    assert (code, err) == (75, "job was not acquired: an operator paused it.\n")


def test_several_may_run_when_the_limit_allows(run: Run) -> None:
    with Semaphore("many", 2), Semaphore("named", 2):
        assert ended(run("many", "--limit", "2", "--wait", "0", "--", "true"))[0] == 0
        assert ended(run("named", "--wait", "0", "--", "true"))[0] == 0


def test_it_renews_for_as_long_as_the_command_runs(run: Run) -> None:
    process = run("job", "--", "sleep", str(2.5 * LEASE))
    eventually(lambda: taken("job"))
    start, last = time.monotonic(), 0.0
    while taken("job"):
        last = time.monotonic() - start
        time.sleep(0.05)
    assert last > 2 * LEASE  # without a gap
    assert ended(process)[0] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signals_reach_the_command(run: Run, number: signal.Signals) -> None:
    script = f"trap 'echo got it; exit 3' {number.name[3:]}; echo up; while :; do sleep 0.05; done"
    process = run("job", "--", "sh", "-c", script)
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    process.send_signal(number)
    assert ended(process)[:2] == (3, "got it\n")
    assert not taken("job")


def test_a_command_that_dies_by_a_signal_gives_the_shells_code(run: Run) -> None:
    assert ended(run("job", "--", "sh", "-c", "kill -9 $$"))[0] == 137


def test_a_signal_while_waiting_leaves_no_waiter(run: Run) -> None:
    with Lock("job"):
        process = run("job", "--", "echo", "never")
        eventually(lambda: status_of("job").waiting)
        process.terminate()
        assert ended(process)[:2] == (128 + signal.SIGTERM, "")
        assert not status_of("job").waiting


def test_clearing_the_lease_ends_the_command_and_its_children(run: Run, tmp_path: Path) -> None:
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


def test_a_command_that_ignores_sigterm_is_killed(
    raw: redis.Redis, settings: Any, monkeypatch: pytest.MonkeyPatch, capfd: Any, tmp_path: Path
) -> None:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "TIMEOUT": LEASE}
    monkeypatch.setattr(runner, "PATIENCE", 0.5)
    ready = tmp_path / "ready"
    threading.Thread(target=lambda: eventually(ready.exists) and clear("job")).start()
    order = runner.Order("job", None, None, False, None, None)
    before = signal.getsignal(signal.SIGTERM)
    script = f"trap 'echo no' TERM; : > {ready}; while :; do sleep 0.05; done"
    assert runner.run(order, ["sh", "-c", script], io.StringIO()) == 76
    assert capfd.readouterr().out == "no\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_killed_runner_frees_its_name_within_the_lease_and_takes_the_command_along(
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
    """What the command wrote into files, once it is there."""
    files = [folder / name for name in names]
    eventually(lambda: all(file.exists() and file.read_text().strip() for file in files))
    return [int(file.read_text()) for file in files]


needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who descends")

FAMILY = """
sleep 61 & echo $! > child
setsid sh -c 'echo $$ > apart; exec sleep 62' &
sh -c '(setsid sh -c "echo \\$\\$ > orphan; exec sleep 63" &)'
wait
"""


@needs_linux
def test_a_killed_runner_takes_all_along_before_another_gets_in(run: Run, tmp_path: Path) -> None:
    """Grandchildren too, those with a session of their own and those whose parent is gone."""
    process = run("job", "--", "sh", "-c", FAMILY)
    family = pids(tmp_path, "child", "apart", "orphan")
    assert all(map(alive, family))
    process.kill()
    with Lock("job", blocking_timeout=10):
        assert [False, False, False] == [alive(pid) for pid in family]


@needs_linux
def test_a_lost_permit_ends_all_of_it(run: Run, tmp_path: Path) -> None:
    process = run("job", "--", "sh", "-c", FAMILY)
    family = pids(tmp_path, "child", "apart", "orphan")
    clear("job")
    assert 76 == ended(process)[0]
    assert [False, False, False] == [alive(pid) for pid in family]


@needs_linux
def test_a_killed_watchdog_takes_its_process_group_along(run: Run, tmp_path: Path) -> None:
    process = run("job", "--", "sh", "-c", "echo $PPID > dog; sleep 61 & echo $! > child; wait")
    dog, child = pids(tmp_path, "dog", "child")
    os.kill(dog, signal.SIGKILL)
    assert 137 == ended(process)[0]
    eventually(lambda: not alive(child))


def test_what_a_command_leaves_behind_on_purpose_goes_on(run: Run, tmp_path: Path) -> None:
    """As in a shell: the permit is for as long as the command runs."""
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


def test_min_hold_keeps_the_name_taken_once_per_period(run: Run) -> None:
    period = ["job", "--skip", "--min-hold", "60", "--", "echo", "ran"]
    assert ended(run(*period))[:2] == (0, "ran\n")
    assert ended(run(*period))[:2] == (0, "")
    assert status_of("job").holders[0].state == "kept"


@pytest.mark.parametrize(("command", "code"), [("no-such-command", 127), ("/etc/passwd", 126)])
def test_what_can_not_be_run_gives_the_shells_code(run: Run, command: str, code: int) -> None:
    found = ended(run("job", "--min-hold", "60", "--", command))
    assert found[0] == code
    assert found[2].startswith(command) and found[2].count("\n") == 1
    assert not taken("job")  # nor kept: another host has the command, maybe


def test_redis_down_is_one_line_before_the_command_starts(run: Run) -> None:
    dead = {"DJANGO_REDIS_SYNC_TEST_URL": "redis://me:secret@127.0.0.1:1/0"}
    code, out, err = ended(run("job", "--", "echo", "never", **dead))
    assert (code, out, err.count("\n")) == (69, "", 1)
    assert "LOCATION in CACHES" in err and "secret" not in err


def test_who_holds_is_shown_without_the_commands_arguments(run: Run) -> None:
    process: Any = run("job", "--", "sleep", "30.123")
    eventually(lambda: taken("job"))
    (holder,) = status_of("job").holders
    assert holder.label["label"] == "locks run: sleep"
    process.terminate()
    assert ended(process)[0] == 128 + signal.SIGTERM


# In this process


def order(**said: Any) -> runner.Order:
    usual = {"name": "job", "limit": None, "wait": None, "skip": False, "min_hold": None}
    return runner.Order(**{**usual, "using": None, **said})


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ({}, (1, math.inf, None, None)),
        ({"name": "named"}, (None, math.inf, None, None)),
        ({"limit": 4, "wait": 2.5}, (4, 2.5, None, None)),
        ({"skip": True}, (1, 0.0, None, None)),
        ({"skip": True, "wait": 2.5}, (1, 2.5, None, None)),
        ({"min_hold": 60.0, "using": "other"}, (1, math.inf, 60.0, "other")),
    ],
)
def test_the_permit_is_as_the_options_say(said: Any, asked: Any, settings: Any) -> None:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "SEMAPHORES": {"named": {"limit": 2}}}
    found = runner._semaphore(order(**said), ["/bin/sleep", "30"])
    assert asked == (found.limit, found.blocking_timeout, found.min_hold, found.using)
    assert ("locks run: sleep", True) == (found.label, found.renew)


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        ("sh", type(None)),
        ("no-such-command", FileNotFoundError),
        ("/no/such/command", FileNotFoundError),
        ("/etc/passwd", PermissionError),
    ],
)
def test_whether_there_is_anything_to_run_is_found_out_before(program: str, kind: type) -> None:
    assert isinstance(runner._missing(program), kind)


@pytest.mark.parametrize(
    ("reason", "skips"),
    [
        ("full", True),
        ("timeout", True),
        ("waiters", True),
        ("paused", True),
        ("cleared", False),
        ("kind", False),
        ("large", False),
    ],
)
def test_what_is_taken_or_paused_is_skipped_and_what_is_wrong_is_said(
    reason: str, skips: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = SimpleNamespace(take=lambda: Refusal(reason, "3"))
    monkeypatch.setattr(runner, "_semaphore", lambda order, command: refused)
    for skip in (True, False):
        said = io.StringIO()
        code = runner.run(order(skip=skip), ["sh"], said)
        quietly = skip and skips
        assert (0 if quietly else runner.NOT_ACQUIRED, quietly) == (code, not said.getvalue())


def test_without_room_for_a_pipe_the_permit_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    said, lease = io.StringIO(), Lock("job").acquire()
    assert lease
    with monkeypatch.context() as patch:
        patch.setattr(os, "pipe", full)
        assert runner.CANNOT_RUN == runner._Job(["sh"], said).under(lease)
    assert "sh: Too many open files" == said.getvalue() and lease.ended


@pytest.mark.parametrize(
    ("error", "code"), [(FileNotFoundError(), 127), (PermissionError(), 126), (OSError(), 126)]
)
def test_a_command_begins_with_the_signals_of_a_shell(
    error: OSError, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is blocked, none is anybody's else."""
    done: list[Any] = []

    def fails(*words: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(watchdog, "prctl", lambda *words: None)
        patch.setattr(signal, "signal", lambda *words: done.append(words))
        patch.setattr(signal, "pthread_sigmask", lambda *words: done.append(words))
        patch.setattr(os, "execvp", fails)
        patch.setattr(os, "_exit", sys.exit)
        with pytest.raises(SystemExit) as ends:
            watchdog.become(["backup"], os.getppid())
    assert code == ends.value.code
    assert (signal.SIG_SETMASK, []) in done
    asked = {getattr(signal, name) for name in watchdog.PASSED}
    assert asked <= {number for number, handler in done if handler is signal.SIG_DFL}


def test_a_signal_that_came_while_it_was_started_is_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child = SimpleNamespace(pid=7, wait=lambda: None)
    sent: list[int] = []
    job = runner._Job(["backup"], None)

    def start(words: list[str], **said: Any) -> Any:
        job._received(signal.SIGTERM, None)
        assert [] == sent
        return child

    monkeypatch.setattr(runner.subprocess, "Popen", start)
    monkeypatch.setattr(job, "_send", sent.append)
    job._start(SimpleNamespace(name="job", fence=9))  # type: ignore[arg-type]
    os.close(job._lifeline)
    assert [signal.SIGTERM] == sent


@pytest.mark.parametrize("name", runner._PASSED_ON)
def test_whoever_waits_for_the_permit_is_ended_by_what_ends_a_command(name: str) -> None:
    """And by nothing else: that a window has another size, say."""
    number, job = getattr(signal, name), runner._Job(["backup"], None)
    if name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"):
        with pytest.raises(SystemExit) as ends:
            job._received(number, None)
        assert 128 + number == ends.value.code
    else:
        job._received(number, None)
    assert [] == job._early


@pytest.mark.parametrize("quietly", [False, True])
def test_a_permit_that_could_not_be_given_back_is_said_unless_its_loss_was(quietly: bool) -> None:
    def release() -> None:
        raise Unavailable("Error at redis://:s3cret@h: gone")

    said = io.StringIO()
    lease: Any = SimpleNamespace(release=release)
    runner._Job(["backup"], said)._give_back(lease, quietly)
    told = "The permit could not be given back: Error at redis://***@h: gone"
    assert ("" if quietly else told) == said.getvalue()


def test_without_proc_nobodys_descendants_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "Path", lambda _: tmp_path)
    assert watchdog.descendants() is None


def test_where_descendants_cannot_be_told_the_process_group_is_signalled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(watchdog, "descendants", lambda: None)
    monkeypatch.setattr(watchdog, "reap", lambda command: 1)
    monkeypatch.setattr(os, "killpg", lambda *words: told.append(words))
    assert watchdog.signal_all(signal.SIGTERM)
    assert [(os.getpgrp(), signal.SIGTERM)] == told


def test_without_room_for_a_thread_the_end_of_the_command_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[float] = []

    def no_room() -> None:
        raise RuntimeError("can't start new thread")

    def wait(seconds: float) -> bool:
        looks.append(seconds)
        assert len(looks) < 3000, "nobody saw it"
        time.sleep(0.01)
        return False

    thread = SimpleNamespace(start=no_room)
    threads = SimpleNamespace(Thread=lambda **_: thread, Event=threading.Event)
    monkeypatch.setattr(runner, "threading", threads)
    job, lease = runner._Job(["sh", "-c", "exit 5"], io.StringIO()), Lock("job").acquire()
    assert lease
    monkeypatch.setattr(job, "_done", SimpleNamespace(wait=wait))
    assert 5 == job.under(lease)
    assert lease.ended and {runner._LOOK} == {*looks}
    with pytest.raises(OSError):
        os.fstat(job._lifeline)


def test_a_signal_that_came_before_the_command_was_there_is_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers = [getattr(signal, name) for name in watchdog.PASSED]
    before = {number: signal.getsignal(number) for number in (*numbers, signal.SIGCHLD)}
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    sent: list[Any] = []

    def fork() -> int:
        signal.raise_signal(signal.SIGUSR1)
        return 4242

    with monkeypatch.context() as patch:
        patch.setattr(os, "fork", fork)
        patch.setattr(os, "kill", lambda *words: sent.append(words))
        try:
            assert 4242 == watchdog.start(["backup"])
            assert masked == signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, masked)
            for number, handler in before.items():
                signal.signal(number, handler)
    assert [(4242, signal.SIGUSR1)] == sent
    assert signal.SIGUSR1 in watchdog.received  # and this process lived on
    watchdog.received.clear()


@pytest.mark.parametrize(
    ("said", "patience"), [(b"2.5", 2.5), (None, 0.0)], ids=["asked to end", "its parent is dead"]
)
def test_the_watchdog_looks_when_something_ended_and_ends_all_when_it_is_told(
    said: bytes | None, patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipes, pipe = list[Any](), os.pipe
    lifeline, other = pipe()
    wakes: list[int] = []
    looks: list[int] = []
    ended: list[float] = []

    def reap(command: int) -> int | None:
        looks.append(command)
        if len(looks) == 3:
            if said is not None:
                os.write(other, said)
            os.close(other)
        elif len(looks) < 3:  # somebody ended, who is not the command
            os.write(wakes[0], b"\x11")
        return 5 if len(looks) == 9 else None

    def end(patience: float) -> None:
        ended.append(patience)
        raise SystemExit

    def ends(code: int) -> None:
        raise SystemExit(code)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pipe", lambda: pipes.append(pipe()) or pipes[-1])
        patch.setattr(watchdog, "prctl", lambda *words: None)
        patch.setattr(watchdog, "start", lambda words: 7)
        patch.setattr(watchdog, "reap", reap)
        patch.setattr(watchdog, "end", end)
        patch.setattr(os, "_exit", ends)
        patch.setattr(signal, "set_wakeup_fd", lambda fd, **_: wakes.append(fd))
        with pytest.raises(SystemExit):
            watchdog.main(lifeline, ["backup"])
    assert ([patience], [7, 7, 7]) == (ended, looks)
    ((awake, wake),) = pipes
    with pytest.raises(BlockingIOError):  # read, or it would look without a pause
        os.read(awake, 1)
    for descriptor in (lifeline, awake, wake):
        os.close(descriptor)
