"""The Simplified Chinese catalog: whole, compiled, and shown."""

import ast
import gettext
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client, override_settings
from django.utils.translation import override
from django.utils.translation.template import templatize

import django_redis_sync
from django_redis_sync import Semaphore
from django_redis_sync.operators import words

PACKAGE = Path(django_redis_sync.__file__).parent
FOLDER = PACKAGE / "locale/zh_Hans/LC_MESSAGES"
TRANSLATING = ("_", "gettext", "gettext_lazy", "gettext_noop", "ngettext", "ngettext_lazy")
IN_TEMPLATE = re.compile(r"""\bn?gettext\(u?('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")
PLACEHOLDER = re.compile(r"%(?:\(\w+\))?[-+ 0#]*\d*(?:\.\d+)?[a-zA-Z%]")


def said_in_code(source: str) -> Iterator[str]:
    """The first argument of every call that translates."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and node.args:
            called = getattr(node.func, "id", getattr(node.func, "attr", None))
            if called in TRANSLATING:
                assert isinstance(node.args[0], ast.Constant), ast.unparse(node)
                yield str(node.args[0].value)


def said_in_template(source: str) -> Iterator[str]:
    """What Django's own makemessages would hand to xgettext."""
    for found in IN_TEMPLATE.finditer(templatize(source)):
        yield str(ast.literal_eval(found[1]))


def said() -> set[str]:
    """Every text of the package that is meant to be translated."""
    code = {text for path in PACKAGE.rglob("*.py") for text in said_in_code(path.read_text())}
    templates = PACKAGE.glob("templates/**/*.html")
    return code | {text for path in templates for text in said_in_template(path.read_text())}


def written() -> dict[str, str]:
    """The catalog as it is written, the plural (there is one form) under the singular."""
    entries: dict[str, str] = {}
    for block in (FOLDER / "django.po").read_text(encoding="utf-8").split("\n\n"):
        fields: dict[str, str] = {}
        field = ""
        for line in block.splitlines():
            if line.startswith("#"):
                assert "fuzzy" not in line
                continue
            word, _space, rest = line.partition(" ")
            if line.startswith('"'):
                rest = line
            else:
                field = word
            fields[field] = fields.get(field, "") + ast.literal_eval(rest)
        if fields:
            entries[fields["msgid"]] = fields.get("msgstr", fields.get("msgstr[0]", ""))
    return entries


def compiled() -> dict[str, str]:
    with open(FOLDER / "django.mo", "rb") as file:
        catalog: dict[object, str] = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
    return {
        key if isinstance(key, str) else key[0]: text  # type: ignore[index]
        for key, text in catalog.items()
    }


#: What to do when a test here fails, with the names of the files.
REMEDY = (
    "run `make messages`, translate what it names in "
    "django_redis_sync/locale/zh_Hans/LC_MESSAGES/django.po, and run it again"
)


def test_nothing_is_left_untranslated() -> None:
    catalog = written()
    missing = sorted(text for text in said() if not catalog.get(text))
    assert missing == [], REMEDY


def test_nothing_is_translated_that_nobody_says() -> None:
    assert sorted(written().keys() - said() - {""}) == [], REMEDY


def test_the_compiled_catalog_is_the_written_one() -> None:
    assert compiled() == written(), REMEDY


def test_make_messages_writes_this_catalog(tmp_path: Path) -> None:
    """In a copy, of which one text was changed: nothing else differs, and it is named."""
    if not all(map(shutil.which, ("xgettext", "msgfmt"))):
        pytest.skip("no GNU gettext: Debian has it as gettext")
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name)
    (tmp_path / "devtools").mkdir()
    shutil.copy(PACKAGE.parent / "devtools/messages.py", tmp_path / "devtools")
    make = [sys.executable, "-m", "devtools.messages"]

    done = subprocess.run(make, cwd=tmp_path, capture_output=True, text=True)
    assert (0, "") == (done.returncode, done.stdout + done.stderr)
    copied = tmp_path / PACKAGE.name / FOLDER.relative_to(PACKAGE)
    assert (FOLDER / "django.po").read_text() == (copied / "django.po").read_text()

    words = tmp_path / PACKAGE.name / "operators/words.py"
    words.write_text(words.read_text().replace("for ever", "for ever and a day"))
    done = subprocess.run(make, cwd=tmp_path, capture_output=True, text=True)
    assert (1, 'not translated yet: "for ever and a day"\n') == (done.returncode, done.stdout)


def test_a_translation_keeps_the_placeholders() -> None:
    """A singular may leave its number away; Chinese has one form for all numbers."""
    wrong = {
        english: chinese
        for english, chinese in written().items()
        if set(PLACEHOLDER.findall(english)) - set(PLACEHOLDER.findall(chinese))
    }
    assert wrong == {}


@pytest.mark.django_db
@pytest.mark.usefixtures("clean_redis")
def test_the_pages_speak_chinese() -> None:
    client = Client()
    client.force_login(User.objects.create_superuser("wang"))
    with override_settings(LANGUAGE_CODE="zh-hans"), Semaphore("exports", 2):
        shown = client.get("/admin/django_redis_sync/name/exports/change/").content.decode()
        index = client.get("/admin/").content.decode()

    assert "使用中 1 / 2" in shown and "没有等待者" in shown
    assert "锁与信号量" in index
    with override("zh-hans"):
        assert words.duration(61) == "1 分 1 秒"
