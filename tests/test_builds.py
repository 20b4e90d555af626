"""What is given to others: the sdist, the wheel, and the types in it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import site
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from tests.support.commands import run

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "django_redis_sync"
IGNORED = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.pyc", "*.sqlite3*")

pytestmark = pytest.mark.timeout(600)


#: The time that builds of the tests say.
EPOCH = "1700000000"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist of a copy of the checkout and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("packaging")
    source = folder / "source"
    source.mkdir()
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, source)
    for name in (PACKAGE, "benchmarks", "devtools", "example_project", "exam", "tests", "docs"):
        shutil.copytree(ROOT / name, source / name, ignore=IGNORED)
    return build(source, folder / "dist")


def build(source: Path, dist: Path) -> Path:
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, source]
    run(*command, cwd=dist.parent, SOURCE_DATE_EPOCH=EPOCH)
    return dist


@pytest.fixture(scope="module")
def rebuilt(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel that somebody builds from the unpacked sdist, later."""
    folder = tmp_path_factory.mktemp("rebuilt")
    run(sys.executable, "-m", "tarfile", "-e", sdist, folder, cwd=folder)
    (source,) = folder.iterdir()
    for path in source.rglob("*"):
        os.utime(path, (time.time(), 1.6e9))
        path.chmod(0o775 if path.is_dir() else path.stat().st_mode | 0o060)
    return build(source, folder / "dist")


@pytest.fixture(scope="module")
def installed(rebuilt: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel was installed."""
    (wheel,) = rebuilt.glob("*.whl")
    target = tmp_path_factory.mktemp("installed")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
    run(*pip, "install", "--no-index", "--no-deps", "--target", target, wheel, cwd=target)
    return target


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def sdist(built: Path) -> Path:
    (found,) = built.glob("*.tar.gz")
    return found


def test_the_index_would_take_both(built: Path) -> None:
    pytest.importorskip("twine")
    said = run(sys.executable, "-m", "twine", "check", "--strict", *built.iterdir(), cwd=built)
    assert 2 == said.count("PASSED")


def test_the_wheel_holds_the_package_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {PACKAGE} == {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert [] == [name for name in names if re.search(r"/test_|conftest|\.po$|\.pyc$", name)]
    package = [name.removeprefix(f"{PACKAGE}/") for name in names]
    for needed in (
        "py.typed",
        "protocol/lua/acquire.lua",
        "locale/zh_Hans/LC_MESSAGES/django.mo",
        "management/commands/locks.py",
        "migrations/0001_initial.py",
    ):
        assert needed in package
    assert any(name.startswith("static/") for name in package)
    assert any(name.startswith("templates/") for name in package)


def test_a_build_is_the_same_wherever_and_whenever(built: Path, rebuilt: Path) -> None:
    """Byte for byte, with SOURCE_DATE_EPOCH."""
    assert {path.name: path.read_bytes() for path in built.iterdir()} == {
        path.name: path.read_bytes() for path in rebuilt.iterdir()
    }


def test_the_sdist_says_one_time_and_nothing_of_who_made_it(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    assert {(int(EPOCH), 0, 0, "", "")} == {
        (one.mtime, one.uid, one.gid, one.uname, one.gname) for one in members
    }
    assert {0o644, 0o755} == {one.mode for one in members}


def files(package: Path) -> set[str]:
    """The files that belong into a wheel; catalogs go in compiled."""
    return {
        path.relative_to(package).as_posix()
        for path in package.rglob("*")
        if path.is_file() and path.suffix not in (".po", ".pyc") and not path.name.startswith(".")
    }


def test_the_wheel_holds_every_file_of_the_package(installed: Path) -> None:
    assert files(ROOT / PACKAGE) == files(installed / PACKAGE)


def test_the_wheel_holds_nothing_but_the_package(installed: Path) -> None:
    tops = {path.name for path in installed.iterdir() if path.suffix != ".dist-info"}
    assert {PACKAGE} == tops


def test_the_installed_wheel_takes_a_lock(
    installed: Path, tmp_path: Path, clean_redis: None
) -> None:
    script = """if True:
        import os
        import django
        from django.conf import settings

        cache = {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": os.environ["DJANGO_REDIS_SYNC_TEST_URL"],
            "KEY_PREFIX": os.environ["DJANGO_REDIS_SYNC_TEST_PREFIX"],
        }
        apps = ["django.contrib.contenttypes", "django_redis_sync"]
        settings.configure(CACHES={"default": cache}, INSTALLED_APPS=apps)
        django.setup()
        import django_redis_sync

        with django_redis_sync.Lock("wheel") as lease:
            assert lease.held and lease.fence > 0
        print(django_redis_sync.__file__)
    """
    out = run(sys.executable, "-c", script, cwd=tmp_path, PYTHONPATH=str(installed))
    assert str(installed / PACKAGE / "__init__.py") == out.strip()


def test_the_wheel_is_for_every_python_3(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")


def test_the_wheel_says_its_license_and_extras(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
    lines = archive.read(name).decode().partition("\n\n")[0].splitlines()
    assert {"License-Expression: MIT", "License-File: LICENSE"} <= set(lines)
    assert "Provides-Extra: prometheus" in lines
    assert any(path.endswith("/LICENSE") for path in archive.namelist())


def test_the_sdist_holds_what_tests_and_builds_it(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    for needed in (
        "setup.cfg",
        "pyproject.toml",
        "LICENSE",
        "CHANGELOG.md",
        "SECURITY.md",
        "Makefile",
    ):
        assert needed in names
    for needed in ("tests/conftest.py", "devtools/servers.py", "example_project/settings.py"):
        assert needed in names
    for needed in ("noxfile.py", "benchmarks/__main__.py", "docs/images/protocol.svg"):
        assert needed in names
    assert [] == [name for name in names if name.endswith((".pyc", ".sqlite3"))]


# Types


@pytest.fixture(scope="module")
def typed_project(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder of a project that installed the wheel, and the Python of its environment."""
    folder = tmp_path_factory.mktemp("typed")
    environment = folder / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=folder)
    (target,) = environment.glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(target)
    # What the wheel depends on; not the checkout, which only the folder itself would name.
    (target / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    project = folder / "project"
    shutil.copytree(ROOT / "tests" / "typed_use", project / "typed_use", ignore=IGNORED)
    return project, environment / "bin" / "python"


@pytest.fixture(scope="module")
def complaints(typed_project: tuple[Path, Path]) -> list[str]:
    """What mypy says, strictly, of a project that installed the wheel."""
    for module in ("mypy", "mypy_django_plugin"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"no {module}: make lint installs it")
    project, python = typed_project
    command = [sys.executable, "-m", "mypy", "--config-file", "typed_use/mypy.ini"]
    command += ["--python-executable", str(python), "typed_use"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout.splitlines()[:-1]


def test_a_project_that_checks_its_types_strictly_finds_them(complaints: list[str]) -> None:
    kept = [line for line in complaints if not re.search(r"/(decorated|refused)\.py", line)]
    assert [] == kept


def test_what_is_decorated_keeps_its_type(complaints: list[str]) -> None:
    assert [] == [line for line in complaints if "decorated.py" in line]


def marked() -> list[int]:
    """The lines of refused.py that a type checker has to refuse."""
    lines = (ROOT / "tests/typed_use/refused.py").read_text(encoding="utf-8").splitlines()
    return [number for number, line in enumerate(lines, 1) if line.endswith("# refused")]


def test_mypy_refuses_wrong_options_and_nothing_else(complaints: list[str]) -> None:
    found = {int(n) for line in complaints for n in re.findall(r"refused\.py:(\d+): error", line)}
    assert marked() == sorted(found), "\n".join(complaints)


def test_pyright_refuses_wrong_options_and_nothing_else(typed_project: tuple[Path, Path]) -> None:
    if importlib.util.find_spec("basedpyright") is None:
        pytest.skip("no basedpyright: pip install basedpyright")
    project, python = typed_project
    (project / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", str(python)]
    done = subprocess.run(
        [*command, "typed_use/refused.py"], cwd=project, capture_output=True, text=True
    )
    said = json.loads(done.stdout)["generalDiagnostics"]
    found = {one["range"]["start"]["line"] + 1 for one in said if one["severity"] == "error"}
    assert marked() == sorted(found), said
