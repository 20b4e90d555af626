"""The sdist, the wheel, and the types in the wheel."""

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


#: SOURCE_DATE_EPOCH of the builds.
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
    """A folder with the sdist and the wheel of a later build from the unpacked sdist."""
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


def test_twine_accepts_sdist_and_wheel(built: Path) -> None:
    pytest.importorskip("twine")
    output = run(sys.executable, "-m", "twine", "check", "--strict", *built.iterdir(), cwd=built)
    assert 2 == output.count("PASSED")


def test_wheel_contains_only_the_package_without_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {PACKAGE} == {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert [] == [name for name in names if re.search(r"/test_|conftest|\.po$|\.pyc$", name)]
    package = {name.removeprefix(f"{PACKAGE}/") for name in names}
    needed = "py.typed protocol/lua/acquire.lua locale/zh_Hans/LC_MESSAGES/django.mo"
    needed += " management/commands/locks.py migrations/0001_initial.py"
    assert set() == {*needed.split()} - package
    assert {"static", "templates"} <= {name.split("/")[0] for name in package if "/" in name}


def test_builds_of_the_same_source_are_identical(built: Path, rebuilt: Path) -> None:
    assert {path.name: path.read_bytes() for path in built.iterdir()} == {
        path.name: path.read_bytes() for path in rebuilt.iterdir()
    }


def test_sdist_has_one_time_and_no_user_names(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    assert {(int(EPOCH), 0, 0, "", "")} == {
        (one.mtime, one.uid, one.gid, one.uname, one.gname) for one in members
    }
    assert {0o644, 0o755} == {one.mode for one in members}


def files(package: Path) -> set[str]:
    """Return the files that belong into the wheel: of catalogs, only the compiled ones."""
    return {
        path.relative_to(package).as_posix()
        for path in package.rglob("*")
        if path.is_file() and path.suffix not in (".po", ".pyc") and not path.name.startswith(".")
    }


def test_installed_package_has_the_files_of_the_source(installed: Path) -> None:
    assert files(ROOT / PACKAGE) == files(installed / PACKAGE)


def test_installed_wheel_acquires_a_lock(
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


def test_wheel_is_tagged_for_all_versions_of_python_3(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")


def test_wheel_metadata_has_license_and_extras(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
    lines = archive.read(name).decode().partition("\n\n")[0].splitlines()
    assert {"License-Expression: MIT", "License-File: LICENSE"} <= set(lines)
    assert "Provides-Extra: prometheus" in lines
    assert any(path.endswith("/LICENSE") for path in archive.namelist())


def test_sdist_contains_the_files_to_test_and_build_it(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    needed = "setup.cfg pyproject.toml LICENSE CHANGELOG.md SECURITY.md Makefile noxfile.py"
    needed += " tests/conftest.py devtools/servers.py example_project/settings.py"
    needed += " benchmarks/__main__.py docs/images/protocol.svg"
    assert set() == {*needed.split()} - {*names}
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
    # The wheel's dependencies, but not the checkout.
    (target / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    project = folder / "project"
    shutil.copytree(ROOT / "tests" / "typed_use", project / "typed_use", ignore=IGNORED)
    return project, environment / "bin" / "python"


@pytest.fixture(scope="module")
def mypy_errors(typed_project: tuple[Path, Path]) -> list[str]:
    """The output of `mypy --strict` for a project that installed the wheel."""
    for module in ("mypy", "mypy_django_plugin"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"no {module}: make lint installs it")
    project, python = typed_project
    command = [sys.executable, "-m", "mypy", "--config-file", "typed_use/mypy.ini"]
    command += ["--python-executable", str(python), "typed_use"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout.splitlines()[:-1]


def test_mypy_strict_accepts_a_project_that_uses_the_wheel(mypy_errors: list[str]) -> None:
    assert [] == [line for line in mypy_errors if not re.search(r"/(decorated|refused)\.py", line)]


def test_decorators_preserve_types_for_mypy(mypy_errors: list[str]) -> None:
    assert [] == [line for line in mypy_errors if "decorated.py" in line]


def marked_lines() -> list[int]:
    """Return the numbers of the lines in refused.py with a type error."""
    lines = (ROOT / "tests/typed_use/refused.py").read_text(encoding="utf-8").splitlines()
    return [number for number, line in enumerate(lines, 1) if line.endswith("# refused")]


def test_mypy_rejects_wrong_options_and_nothing_else(mypy_errors: list[str]) -> None:
    found = {int(n) for line in mypy_errors for n in re.findall(r"refused\.py:(\d+): error", line)}
    assert marked_lines() == sorted(found), "\n".join(mypy_errors)


def test_pyright_rejects_wrong_options_and_nothing_else(typed_project: tuple[Path, Path]) -> None:
    if importlib.util.find_spec("basedpyright") is None:
        pytest.skip("no basedpyright: pip install basedpyright")
    project, python = typed_project
    (project / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", str(python)]
    done = subprocess.run(
        [*command, "typed_use/refused.py"], cwd=project, capture_output=True, text=True
    )
    output = json.loads(done.stdout)["generalDiagnostics"]
    found = {one["range"]["start"]["line"] + 1 for one in output if one["severity"] == "error"}
    assert marked_lines() == sorted(found), output
