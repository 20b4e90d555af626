"""The contents of the sdist and of the wheel, and the types in the wheel.

tests/test_tutorial.py installs a wheel, and runs a site with it.
"""

from __future__ import annotations

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
FOLDERS = (PACKAGE, "benchmarks", "devtools", "example_project", "tests", "docs")
#: The value of SOURCE_DATE_EPOCH for the builds.
EPOCH = "1700000000"
#: Some of the files that the sdist must contain.
IN_SDIST = "setup.cfg pyproject.toml LICENSE CHANGELOG.md SECURITY.md Makefile noxfile.py"
IN_SDIST += " tests/conftest.py devtools/servers.py example_project/settings.py"
IN_SDIST += " benchmarks/__main__.py docs/images/protocol.svg"

pytestmark = pytest.mark.timeout(600)


def build(source: Path, dist: Path) -> Path:
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, source]
    run(*command, cwd=dist.parent, SOURCE_DATE_EPOCH=EPOCH)
    return dist


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build an sdist and a wheel of a copy of the checkout. Return {".gz": path, ".whl": path}."""
    source = tmp_path_factory.mktemp("packaging") / "source"
    source.mkdir()
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, source)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, source / name, ignore=IGNORED)
    found = {path.suffix: path for path in build(source, source.parent / "dist").iterdir()}
    assert {".gz", ".whl"} == found.keys()
    return found


@pytest.fixture(scope="module")
def wheel(built: dict[str, Path]) -> Path:
    return built[".whl"]


def test_wheels_of_the_same_source_are_identical(built: dict[str, Path], tmp_path: Path) -> None:
    """The second build runs later, on the unpacked sdist, whose files have other times."""
    run(sys.executable, "-m", "tarfile", "-e", built[".gz"], tmp_path, cwd=tmp_path)
    (source,) = tmp_path.iterdir()
    for path in source.rglob("*"):
        os.utime(path, (time.time(), 1.6e9))
    rebuilt = build(source, tmp_path / "dist")
    (wheel,) = rebuilt.glob("*.whl")
    assert built[".whl"].name == wheel.name
    assert built[".whl"].read_bytes() == wheel.read_bytes()


def files(package: Path) -> set[str]:
    """Return the files that the wheel must contain, thus no sources of translations (.po)."""
    return {
        path.relative_to(package).as_posix()
        for path in package.rglob("*")
        if path.is_file() and path.suffix not in (".po", ".pyc") and not path.name.startswith(".")
    }


def test_wheel_contains_exactly_the_files_of_the_package(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    archive = zipfile.ZipFile(wheel)
    names = archive.namelist()
    own = {name.removeprefix(f"{PACKAGE}/") for name in names if ".dist-info/" not in name}
    assert files(ROOT / PACKAGE) == own
    assert [] == [name for name in own if re.search(r"/test_|conftest", name)]
    (metadata,) = (name for name in names if name.endswith("/METADATA"))
    lines = archive.read(metadata).decode().partition("\n\n")[0].splitlines()
    wanted = {"License-Expression: MIT", "License-File: LICENSE", "Provides-Extra: prometheus"}
    assert set() == wanted - {*lines} and any(name.endswith("/LICENSE") for name in names)


def test_sdist_contains_the_required_files(built: dict[str, Path]) -> None:
    with tarfile.open(built[".gz"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert set() == {*IN_SDIST.split()} - names
    assert [] == [name for name in names if name.endswith((".pyc", ".sqlite3"))]


def test_twine_accepts_sdist_and_wheel(built: dict[str, Path]) -> None:
    pytest.importorskip("twine")
    output = run(sys.executable, "-m", "twine", "check", "--strict", *built.values(), cwd=ROOT)
    assert 2 == output.count("PASSED")


def test_readme_renders_as_on_pypi_with_absolute_links_and_pictures(wheel: Path) -> None:
    """`twine check` renders no Markdown. PyPI renders it by this package."""
    pytest.importorskip("comrak")
    markdown = pytest.importorskip("readme_renderer.markdown")
    archive = zipfile.ZipFile(wheel)
    (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
    head, _, description = archive.read(metadata).decode().partition("\n\n")
    assert {"Documentation", "Issues", "Changelog"} <= set(re.findall(r"Project-URL: (\w+),", head))
    page = markdown.render(description)
    assert page is not None, "PyPI can't render the README"
    own = "#user-content-"  # what the renderer links each heading to
    addresses = re.findall(rf'(?:href|src)="(?!{own})([^"]*)"', page)
    assert len(addresses) > 15
    assert [] == [address for address in addresses if not address.startswith("https://")]
    assert 2 == page.count("<table>") and "<!--" not in page and "needs:" not in page


# Types


@pytest.fixture(scope="module")
def typed_project(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Install the wheel in a new environment. Return a project folder and the new Python."""
    folder = tmp_path_factory.mktemp("typed")
    environment = folder / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=folder)
    (target,) = environment.glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(target)
    # Add the dependencies of the wheel, which are installed here, but not the checkout.
    (target / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    shutil.copytree(ROOT / "tests" / "typed_use", folder / "typed_use", ignore=IGNORED)
    return folder, environment / "bin" / "python"


def wrong_lines() -> list[int]:
    """Return the numbers of the lines in refused.py that a type checker must reject."""
    lines = (ROOT / "tests/typed_use/refused.py").read_text(encoding="utf-8").splitlines()
    return [number for number, line in enumerate(lines, 1) if line.endswith("# refused")]


def test_mypy_strict_reports_exactly_the_lines_with_wrong_options(
    typed_project: tuple[Path, Path],
) -> None:
    """In the folder typed_use, mypy reports the marked lines of refused.py, and no other line."""
    pytest.importorskip("mypy_django_plugin")
    folder, python = typed_project
    words = ("mypy", "--config-file", "typed_use/mypy.ini", "--python-executable", python)
    done = subprocess.run(
        [sys.executable, "-m", *words, "typed_use"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    lines = done.stdout.splitlines()[:-1]
    assert [] == [line for line in lines if "refused.py" not in line]
    found = {int(n) for line in lines for n in re.findall(r"refused\.py:(\d+): error", line)}
    assert wrong_lines() == sorted(found), "\n".join(lines)


def test_pyright_rejects_wrong_options_and_nothing_else(typed_project: tuple[Path, Path]) -> None:
    pytest.importorskip("basedpyright")
    folder, python = typed_project
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    words = ("basedpyright", "--outputjson", "--pythonpath", python)
    files = ("typed_use/refused.py", "typed_use/decorated.py")
    done = subprocess.run(
        [sys.executable, "-m", *words, *files], cwd=folder, capture_output=True, text=True
    )
    output = json.loads(done.stdout)["generalDiagnostics"]
    found = {
        (Path(one["file"]).name, one["range"]["start"]["line"] + 1)
        for one in output
        if one["severity"] == "error"
    }
    assert [("refused.py", line) for line in wrong_lines()] == sorted(found), output
