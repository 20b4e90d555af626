"""The Python blocks in docs/ and in the README run, and their shell commands are valid.

The blocks of a page run in order and share a namespace. A hidden block (`<!-- python`) prepares
the next block or checks the result of the last. A block after `<!-- needs: module -->` runs only in
a second run of the page, which is skipped if the module isn't installed. Blocks may `await`. A
`REDIS_SYNC` that a block assigns applies from there on.

Shell commands are not run. Their parsers read them, so that a page names no unknown verb, option,
or choice.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import configparser
import importlib
import importlib.util
import inspect
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from django.apps import apps
from django.conf import settings as django_settings
from django.core.management import execute_from_command_line, get_commands
from django.db import connection

ROOT = Path(__file__).resolve().parent.parent
#: Pages that a test module of their own runs.
ELSEWHERE = {"tutorial": "test_tutorial.py"}
TOP_PAGES = [ROOT / name for name in ("README.md", "README.zh-Hans.md", "CONTRIBUTING.md")]
PAGES = {
    page.stem: page
    for page in [*sorted((ROOT / "docs").glob("**/*.md")), *TOP_PAGES]
    if page.stem not in ELSEWHERE
}

BLOCK = re.compile(
    r"(?:^<!-- needs: (?P<needs>[\w.]+) -->\n)?"
    r"(?:^```(?P<language>[\w{}-]*)\n(?P<shown>.*?)^```$|^<!-- python\n(?P<hidden>.*?)^-->$)",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    language: str
    text: str
    line: int  # the first line of the text
    needs: str | None


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in BLOCK.finditer(text):
        part = "hidden" if match["shown"] is None else "shown"
        line = text.count("\n", 0, match.start(part)) + 1
        language = "python" if part == "hidden" else match["language"]
        found.append(Block(language, match[part], line, match["needs"]))
    return found


def installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@pytest.fixture
def run(clean_redis: None, transactional_db: None, settings: Any) -> Iterator[Any]:
    """Return a function that runs a page with the blocks that need the given modules."""
    models: list[Any] = []

    def create_table(model: Any) -> None:
        with connection.schema_editor() as editor:
            editor.create_model(model)
        models.append(model)

    def run_page(name: str, *optional: str) -> None:
        module = ModuleType(f"docs_{name.replace('-', '_')}")
        module.__dict__["create_table"] = create_table
        sys.modules[module.__name__] = module  # for code that looks up a function's module
        try:
            for block in blocks(PAGES[name]):
                if block.language == "python" and (not block.needs or block.needs in optional):
                    _execute(block, PAGES[name], module.__dict__)
                    _apply(module.__dict__.pop("REDIS_SYNC", None))
        finally:
            del sys.modules[module.__name__]

    def _apply(redis_sync: dict[str, Any] | None) -> None:
        if redis_sync is not None:
            of_tests = {"KEY_PREFIX": django_settings.PREFIX, "CACHE": "default"}
            settings.REDIS_SYNC = {**redis_sync, **of_tests}

    if installed("django.tasks"):
        immediate = "django.tasks.backends.immediate.ImmediateBackend"
        settings.TASKS = {"default": {"BACKEND": immediate}}
    yield run_page
    for model in models:
        with connection.schema_editor() as editor:
            editor.delete_model(model)
        apps.all_models[model._meta.app_label].pop(model._meta.model_name)
    apps.clear_cache()


def _execute(block: Block, page: Path, namespace: dict[str, Any]) -> None:
    filename = str(page.relative_to(ROOT))
    tree = ast.parse(block.text, filename)
    ast.increment_lineno(tree, block.line - 1)  # tracebacks show the page's lines
    code = compile(tree, filename, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, namespace)
    if inspect.iscoroutine(result):
        asyncio.run(result)


@pytest.mark.parametrize("name", PAGES)
def test_each_python_block_of_a_page_runs(name: str, run: Any) -> None:
    run(name)


OPTIONAL = sorted(
    {(name, block.needs) for name, page in PAGES.items() for block in blocks(page) if block.needs}
)


@pytest.mark.filterwarnings(
    "default::DeprecationWarning:celery", "default::DeprecationWarning:kombu"
)
@pytest.mark.parametrize(("name", "module"), OPTIONAL)
def test_blocks_that_need_a_library_run_when_it_is_installed(
    name: str, module: str, run: Any
) -> None:
    if not installed(module):
        pytest.skip(f"{module} is not installed")
    run(name, module)


MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^(\w+):", MAKEFILE, re.MULTILINE))


class Parsed(Exception):
    """Raised after the words were parsed, so that the command does not run."""


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that lets a program parse words from sys.argv but not run them."""
    real = argparse.ArgumentParser.parse_args

    def stop(self: argparse.ArgumentParser, *args: Any, **options: Any) -> None:
        real(self, *args, **options)
        raise Parsed

    def call(what: Callable[[], object], words: list[str]) -> None:
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(Parsed), monkeypatch.context() as patch:
            patch.setattr(argparse.ArgumentParser, "parse_args", stop)
            what()

    return call


def read_make(words: list[str], parse: Callable[..., None]) -> None:
    """Check that the target exists and that its module accepts ARGS."""
    target, *rest = words
    assert target in TARGETS
    recipe = MAKEFILE.partition(f"\n{target}:")[2].partition("\n\n")[0]
    for word in rest:
        module = re.search(r"-m ([\w.]+) \$\(ARGS\)", recipe)
        assert word.startswith("ARGS=") and module, word
        main = importlib.import_module(f"{module[1]}.__main__").main
        parse(main, [module[1], *shlex.split(word.removeprefix("ARGS="))])


def read_manage(words: list[str], parse: Callable[..., None]) -> None:
    """Check that the command exists and accepts the words before `--`."""
    assert words[0] in get_commands()
    argv = ["manage.py", *(words[: words.index("--")] if "--" in words else words)]
    parse(lambda: execute_from_command_line(argv), argv)


def read_pip(words: list[str], parse: Callable[..., None]) -> None:
    """Check that the extras exist."""
    project = configparser.ConfigParser()
    project.read(ROOT / "setup.cfg", encoding="utf-8")
    wanted = set(re.findall(r"\w+", ",".join(re.findall(r"\[(.*?)\]", " ".join(words)))))
    assert set() == wanted - set(project["options.extras_require"])


def read_pre_commit(words: list[str], parse: Callable[..., None]) -> None:
    assert ["install"] == words
    assert (ROOT / ".pre-commit-config.yaml").is_file()


#: The functions that check a command, by its beginning.
READERS: dict[str, Callable[[list[str], Callable[..., None]], None]] = {
    "make ": read_make,
    "python manage.py ": read_manage,
    "python -m pip install ": read_pip,
    ".venv/bin/python -m pip install ": read_pip,
    ".venv/bin/pre-commit ": read_pre_commit,
}


@pytest.mark.parametrize("name", PAGES)
def test_each_shell_command_of_a_page_is_valid(name: str, parse: Callable[..., None]) -> None:
    for command in commands_of(PAGES[name]):
        begins = [start for start in READERS if command.startswith(start)]
        assert len(begins) == 1, f"no function in READERS for {command}"
        READERS[begins[0]](shlex.split(command)[len(begins[0].split()) :], parse)


def commands_of(page: Path) -> Iterator[str]:
    for block in blocks(page):
        if block.language in ("console", "sh", "shell", "bash"):
            for line in block.text.splitlines():
                command = line.removeprefix("$ ").partition("  #")[0].strip()
                if command and (line.startswith("$ ") or block.language != "console"):
                    yield command


@pytest.mark.parametrize("name", [*PAGES, *ELSEWHERE])
def test_make_targets_named_on_a_page_exist(name: str) -> None:
    page = PAGES.get(name) or ROOT / "docs" / f"{name}.md"
    named = re.findall(r"(?:`|\$ |\()make (\w+)", page.read_text(encoding="utf-8"))
    assert set() == set(named) - TARGETS


@pytest.mark.parametrize("name", PAGES)
def test_each_block_of_a_page_has_a_known_language(name: str) -> None:
    known = {"python", "console", "sh", "shell", "bash", "text", "json", "ini", "{eval-rst}"}
    assert set() == {block.language for block in blocks(PAGES[name])} - known
    text = PAGES[name].read_text(encoding="utf-8")
    fences = len(re.findall(r"^```", text, re.MULTILINE))
    shown = [block for block in blocks(PAGES[name]) if block.language]
    hidden = len(re.findall(r"^<!-- python$", text, re.MULTILINE))
    assert fences == 2 * (len(shown) - hidden)


@pytest.mark.parametrize("name", PAGES)
def test_links_between_pages_have_existing_targets(name: str) -> None:
    text = PAGES[name].read_text(encoding="utf-8")
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    assert [] == [target for target in targets if not (PAGES[name].parent / target).exists()]


@pytest.mark.parametrize("name", PAGES)
def test_each_picture_exists_and_has_a_description(name: str) -> None:
    text = PAGES[name].read_text(encoding="utf-8")
    pictures = re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", text)
    assert [] == [
        path for text, path in pictures if not text or not (PAGES[name].parent / path).is_file()
    ]


def test_each_public_name_has_an_entry_in_the_api_reference() -> None:
    import django_redis_sync
    from django_redis_sync import exceptions

    page = PAGES["api"].read_text(encoding="utf-8")
    entries = set(re.findall(r"^\.\. auto\w+:: ([\w.]+)", page, re.MULTILINE))
    documented = {entry.rpartition(".")[2] for entry in entries}
    if "django_redis_sync.exceptions" in entries:
        documented |= {name for name, value in vars(exceptions).items() if isinstance(value, type)}
    assert set() == set(django_redis_sync.__all__) - documented


def test_quickstart_has_fewer_than_20_lines() -> None:
    text = (
        TOP_PAGES[0].read_text(encoding="utf-8").partition("\n## Use it\n")[2].partition("\n## ")[0]
    )
    shown = re.findall(r"^```\w+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in shown for line in block.splitlines() if line.strip()]
    assert 0 < len(lines) < 20


def _structure(page: Path) -> list[Any]:
    """Return the headings, links, tables, and code without comments of a page."""
    text = page.read_text(encoding="utf-8")
    code = [re.sub(r" *#.*", "", block.text) for block in blocks(page)]
    prose = BLOCK.sub("", text)
    sections = [
        [level, sorted(re.findall(r"\]\(([^)]+)\)", body)), len(re.findall(r"^\|", body, re.M))]
        for level, body in re.findall(r"^(#+) .*?$(.*?)(?=^#+ |\Z)", prose, re.M | re.S)
    ]
    other = {"README.md", "README.zh-Hans.md"}
    sections[0][1] = [link for link in sections[0][1] if link not in other]
    return [sections, code]


def test_readme_has_the_same_structure_in_both_languages() -> None:
    assert _structure(TOP_PAGES[0]) == _structure(TOP_PAGES[1])


def _sources() -> str:
    package = ROOT / "django_redis_sync"
    files = [*package.rglob("*.py"), *package.rglob("*.lua"), *(ROOT / "tests").rglob("*.py")]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def test_files_and_identifiers_named_in_contributing_exist() -> None:
    text = BLOCK.sub("", TOP_PAGES[2].read_text(encoding="utf-8"))
    words = {word for word in re.findall(r"`([^`\n]+)`", text) if " " not in word}
    files = {word for word in words if "/" in word or re.search(r"\.(py|lua|md|cfg)$", word)}
    roots = (ROOT, ROOT / "django_redis_sync")
    real = {word for word in files if "<" not in word}
    assert set() == {file for file in real if not any((root / file).exists() for root in roots)}
    sources = set(re.findall(r"\w+", _sources()))
    named = {part for word in words - files for part in re.findall(r"[A-Za-z_]\w*", word)}
    assert set() == named - sources
