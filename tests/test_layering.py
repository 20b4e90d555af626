"""The layers of the package, and rules for its sources."""

import ast
import graphlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "django_redis_sync"
OTHER_FOLDERS = ["benchmarks", "devtools", "example_project", "tests"]

# The layers, lowest first. A module may import only from its own layer and from lower layers.
LAYERS = [
    {"values", "defaults", "exceptions", "signals", "conf", "logs"},
    {"protocol"},
    {"engine"},
    {"operators"},  # for operators: status, statistics, and actions
    {"locks"},  # for Python code: locks, semaphores, and leases
    {"limits"},  # for requests: policies, admission, and rejection
    {"middleware", "metrics", "throttling"},
    {"console", "models", "migrations"},
    {"admin", "checks", "management", "testing"},
    {"__init__", "apps"},  # the public names, and the AppConfig
]
LEVEL = {package: level for level, packages in enumerate(LAYERS) for package in packages}

# A package, and the libraries that it must not import. PURE_IMPORTS: the only parts of
# django_redis_sync that the package may import.
PURE = {"protocol": {"django", "redis", "django_redis", "asgiref"}}
PURE_IMPORTS = {"protocol", "defaults", "values"}

# A library, and the only module that may import it.
ONLY = {"django_redis": "engine.backends", "redis.asyncio": "engine.clients"}

MODULES = {
    path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", "."): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(module: str) -> Iterator[str]:
    """Yield the full dotted name of everything that a module or a function in it imports."""
    here = f"{PACKAGE.name}.{module}".split(".")
    for node in ast.walk(tree(MODULES[module])):
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
        if first == PACKAGE.name:
            # In `from .a import b`, b is a module of the package a, or a name inside the module a.
            parts = rest.split(".") if rest else []
            heads = [parts[:end] for end in range(len(parts), -1, -1)]
            candidates = [".".join(h) for head in heads for h in (head, [*head, "__init__"])]
            found.add(next(candidate for candidate in candidates if candidate in MODULES))
    return found - {module}


def package_of(module: str) -> str:
    return module.split(".")[0]


def test_modules_import_only_from_their_own_or_lower_layers() -> None:
    assert set() == {package_of(module) for module in MODULES} - LEVEL.keys()
    upward = [
        (module, other)
        for module in MODULES
        for other in own_imports(module)
        if LEVEL[package_of(other)] > LEVEL[package_of(module)]
    ]
    assert [] == upward
    graphlib.TopologicalSorter({module: own_imports(module) for module in MODULES}).prepare()


def test_modules_import_only_the_libraries_allowed_for_them() -> None:
    for module in MODULES:
        package = package_of(module)
        forbidden = PURE.get(package, set()) | {lib for lib, home in ONLY.items() if home != module}
        found = {n for n in imports(module) for lib in forbidden if f"{n}.".startswith(f"{lib}.")}
        assert (module, set()) == (module, found)
        if package in PURE:
            used = {package_of(other) for other in own_imports(module)}
            assert (module, set()) == (module, used - PURE_IMPORTS)


@pytest.mark.parametrize("folder", OTHER_FOLDERS)
def test_imports_inside_functions_refer_to_modules_that_exist(folder: str) -> None:
    """If a module was moved, an import inside a function fails only when the function runs."""
    missing = []
    for path in (ROOT / folder).rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for dots, name, names in re.findall(r"^ +from (\.*)([\w.]*) import ([\w, ]+)$", text, re.M):
            module = (path.parents[len(dots) - 1] if dots else ROOT).joinpath(*name.split("."))
            if module.relative_to(ROOT).parts[0] in [*OTHER_FOLDERS, PACKAGE.name]:
                here = [module.with_suffix(".py"), module / "__init__.py", *module.glob("*")]
                words = " ".join(f"{one.stem} {source(one)}" for one in here)
                missing += [(path.name, n) for n in names.split(", ") if not has(words, n)]
    assert [] == missing


def source(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.suffix == ".py" and path.exists() else ""


def has(text: str, name: str) -> bool:
    return re.search(rf"\b{name.partition(' as ')[0]}\b", text) is not None


def test_threads_of_the_package_are_daemons() -> None:
    for module, path in MODULES.items():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "threading.Thread":
                options = {option.arg: ast.unparse(option.value) for option in node.keywords}
                assert "True" == options.get("daemon"), f"{module}:{node.lineno}"


def takers_of_using(path: Path) -> set[str]:
    """Return the names of functions with an option `using`, and of classes with such a method."""
    classes = [node for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef)]
    return {
        owner.name if isinstance(owner, ast.ClassDef) else node.name
        for owner in [tree(path), *classes]
        for node in owner.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if any(arg.arg == "using" for arg in node.args.kwonlyargs)
    }


def test_operator_code_passes_the_using_option_to_every_call_that_accepts_it() -> None:
    paths = [*PACKAGE.glob("operators/**/*.py"), *PACKAGE.glob("management/**/*.py")]
    paths.append(PACKAGE / "metrics.py")
    takers = {
        f"{start}{name}"
        for path in paths
        for name in takers_of_using(path)
        for start in ("", f"{path.stem}.", f"{path.parent.stem}.")
    }
    calls = [
        (path.name, node.lineno, ast.unparse(node.func), {k.arg for k in node.keywords})
        for path in paths
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in takers
    ]
    assert len(calls) > 40, "the calls are no longer recognized"
    assert [] == [call for call in calls if not call[3] & {"using", None}]


def test_each_lua_file_has_at_most_50_lines_without_comments() -> None:
    for path in PACKAGE.rglob("*.lua"):
        lines = path.read_text(encoding="utf-8").splitlines()
        code = [line for line in lines if not line.startswith("--")]
        assert len(code) <= 50, path.stem
