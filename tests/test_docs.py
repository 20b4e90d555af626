"""The Python blocks in docs/ and in the README run, and their shell commands and links are valid.

The blocks of a page run in order and share a namespace. A hidden block (`<!-- python`) prepares
the next block or checks the previous block. If a block follows `<!-- needs: module -->`, and the
module is installed, the page runs a second time, with this block. Blocks may `await`. If a block
assigns `REDIS_SYNC`, the following blocks use this setting.
"""

from __future__ import annotations

import ast
import asyncio
import configparser
import importlib.util
import inspect
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from django.apps import apps
from django.core.management import get_commands, load_command_class
from django.db import connection

import django_redis_sync
from django_redis_sync import exceptions

ROOT = Path(__file__).resolve().parent.parent
README, CHINESE, CONTRIBUTING = (
    ROOT / name for name in ("README.md", "README.zh-Hans.md", "CONTRIBUTING.md")
)
TUTORIAL = ROOT / "docs" / "tutorial.md"  # test_tutorial.py runs this page
PAGES = {page.stem: page for page in [*sorted((ROOT / "docs").glob("**/*.md")), README, CHINESE]}
PAGES[CONTRIBUTING.stem] = CONTRIBUTING
TARGETS = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
BLOCK = re.compile(
    r"(?:^<!-- needs: (?P<needs>[\w.]+) -->\n)?"
    r"(?:^```(?P<language>[\w{}-]*)\n(?P<shown>.*?)^```$|^<!-- python\n(?P<hidden>.*?)^-->$)",
    re.MULTILINE | re.DOTALL,
)
SHELLS = ("console", "sh", "shell", "bash")
LANGUAGES = {"python", *SHELLS, "text", "json", "ini", "{eval-rst}"}


class Block(NamedTuple):
    language: str
    text: str
    line: int  # number of the text's first line
    needs: str | None


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        part = "hidden" if match["shown"] is None else "shown"
        line = text.count("\n", 0, match.start(part)) + 1
        language = "python" if part == "hidden" else match["language"]
        yield Block(language, match[part], line, match["needs"])


@pytest.fixture
def create_table(transactional_db: None) -> Iterator[Any]:
    """Return a function that creates the table of a model for the test."""
    models: list[Any] = []

    def create(model: Any) -> None:
        with connection.schema_editor() as editor:
            editor.create_model(model)
        models.append(model)

    yield create
    for model in models:
        with connection.schema_editor() as editor:
            editor.delete_model(model)
        apps.all_models[model._meta.app_label].pop(model._meta.model_name)
    apps.clear_cache()


READ = {name: page for name, page in PAGES.items() if page != TUTORIAL}
RUNS = {(name, block.needs) for name, page in READ.items() for block in blocks(page)}
RUNS |= {(name, None) for name in READ}


@pytest.mark.filterwarnings(
    "default::DeprecationWarning:celery", "default::DeprecationWarning:kombu"
)
@pytest.mark.parametrize(("name", "needs"), sorted(RUNS, key=str))
def test_python_code_on_a_docs_page_runs_without_an_error(
    name: str, needs: str | None, create_table: Any, clean_redis: None, settings: Any
) -> None:
    page, module = PAGES[name], ModuleType(f"docs_{name.replace('-', '_')}")
    if needs:
        pytest.importorskip(needs)
    if importlib.util.find_spec("django.tasks"):
        immediate = "django.tasks.backends.immediate.ImmediateBackend"
        settings.TASKS = {"default": {"BACKEND": immediate}}
    module.__dict__["create_table"] = create_table
    sys.modules[module.__name__] = module  # some code looks up the module of a function by name
    try:
        for block in blocks(page):
            if block.language == "python" and block.needs in (None, needs):
                tree = ast.parse(block.text, str(page))
                ast.increment_lineno(tree, block.line - 1)  # for tracebacks with the page's lines
                code = compile(tree, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                result = eval(code, module.__dict__)
                if inspect.iscoroutine(result):
                    asyncio.run(result)
                if "REDIS_SYNC" in module.__dict__:
                    of_tests = {"KEY_PREFIX": settings.PREFIX, "CACHE": "default"}
                    settings.REDIS_SYNC = {**module.__dict__.pop("REDIS_SYNC"), **of_tests}
    finally:
        del sys.modules[module.__name__]


def check_make(words: list[str]) -> None:
    target, *rest = words
    assert target in TARGETS
    for option in re.findall(r"--[\w-]+", " ".join(rest)):
        assert f'"{option}"' in (ROOT / target / "__main__.py").read_text(encoding="utf-8")


def check_manage(words: list[str]) -> None:
    command = load_command_class(get_commands()[words[0]], words[0])
    before = words[: words.index("--")] if "--" in words else words
    command.create_parser("manage.py", words[0]).parse_args(before[1:])


def check_pip(words: list[str]) -> None:
    project = configparser.ConfigParser()
    project.read(ROOT / "setup.cfg", encoding="utf-8")
    extras = set(re.findall(r"\w+", ",".join(re.findall(r"\[(.*?)\]", " ".join(words)))))
    assert set() == extras - set(project["options.extras_require"])


def check_pre_commit(words: list[str]) -> None:
    assert ["install"] == words and (ROOT / ".pre-commit-config.yaml").is_file()


#: For each beginning of a shell command, the function that checks the rest of the command.
CHECKS = {
    "make ": check_make,
    "python manage.py ": check_manage,
    "python -m pip install ": check_pip,
    ".venv/bin/python -m pip install ": check_pip,
    ".venv/bin/pre-commit ": check_pre_commit,
}


@pytest.mark.parametrize("name", READ)
def test_shell_commands_of_a_page_are_valid(name: str) -> None:
    for block in blocks(PAGES[name]):
        for line in block.text.splitlines() if block.language in SHELLS else ():
            command = line.removeprefix("$ ").partition("  #")[0].strip()
            if command and (line.startswith("$ ") or block.language != "console"):
                begins = [start for start in CHECKS if command.startswith(start)]
                assert 1 == len(begins), f"no function in CHECKS for {command}"
                CHECKS[begins[0]](shlex.split(command)[len(begins[0].split()) :])


@pytest.mark.parametrize("name", PAGES)
def test_page_has_valid_code_blocks_links_and_pictures(name: str) -> None:
    text = PAGES[name].read_text(encoding="utf-8")
    shown = [match["language"] for match in BLOCK.finditer(text) if match["shown"] is not None]
    assert set() == {*shown} - LANGUAGES, "unknown languages"
    assert 2 * len(shown) == len(re.findall(r"^```", text, re.MULTILINE)), "a block is not closed"
    here = PAGES[name].parent
    links = re.findall(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)#]+)", text)
    assert [] == [target for _, _, target in links if not (here / target).exists()]
    assert [] == [target for picture, about, target in links if picture and not about]
    assert set() == {*re.findall(r"(?:`|\$ |\()make (\w+)", text)} - TARGETS


def test_each_public_name_has_an_entry_in_the_api_reference() -> None:
    page = PAGES["api"].read_text(encoding="utf-8")
    entries = re.findall(r"^\.\. auto\w+:: ([\w.]+)", page, re.MULTILINE)
    documented = {entry.rpartition(".")[2] for entry in entries}
    if "django_redis_sync.exceptions" in entries:
        documented |= {name for name, value in vars(exceptions).items() if isinstance(value, type)}
    shown = "\n".join(
        match["shown"]
        for page in PAGES.values()
        for match in BLOCK.finditer(page.read_text(encoding="utf-8"))
        if match["language"] == "python"
    )
    used = re.findall(r"^ *from (django_redis_sync[\w.]*) import (.+)$", shown, re.MULTILINE)
    names = {(module, name) for module, names in used for name in names.split(", ")}
    found = {name for module, name in names if not any(f"{module}.{name}." in e for e in entries)}
    assert set() == (found | set(django_redis_sync.__all__)) - documented


def test_readme_quickstart_has_fewer_than_20_lines() -> None:
    text = README.read_text(encoding="utf-8").partition("\n## Use it\n")[2].partition("\n## ")[0]
    shown = re.findall(r"^```\w+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert 0 < len([line for block in shown for line in block.splitlines() if line.strip()]) < 20


def structure(page: Path) -> list[Any]:
    """Return what a translation must keep of a page: heading levels, links, sizes of tables, and
    code without comments."""
    text = page.read_text(encoding="utf-8").replace("README.zh-Hans.md", "README.md")
    code = [re.sub(r" *#.*", "", block.text) for block in blocks(page)]
    sections = [
        (level, sorted(re.findall(r"\]\(([^)]+)\)", body)), len(re.findall(r"^\|", body, re.M)))
        for level, body in re.findall(
            r"^(#+) .*?$(.*?)(?=^#+ |\Z)", BLOCK.sub("", text), re.M | re.S
        )
    ]
    return [sections, code]


def test_readme_has_the_same_structure_in_both_languages() -> None:
    assert structure(README) == structure(CHINESE)


def test_every_file_and_identifier_in_contributing_md_exists() -> None:
    text = BLOCK.sub("", CONTRIBUTING.read_text(encoding="utf-8"))
    words = {word for word in re.findall(r"`([^`\n]+)`", text) if " " not in word}
    files = {word for word in words if "/" in word or re.search(r"\.(py|lua|md|cfg)$", word)}
    roots = (ROOT, ROOT / "django_redis_sync")
    missing = {file for file in files if not any((root / file).exists() for root in roots)}
    assert set() == {file for file in missing if "<" not in file}
    sources = [*roots[1].rglob("*.py"), *roots[1].rglob("*.lua"), *(ROOT / "tests").rglob("*.py")]
    known = {w for path in sources for w in re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    named = {part for word in words - files for part in re.findall(r"[A-Za-z_]\w*", word)}
    assert set() == named - known
