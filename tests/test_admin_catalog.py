"""The Simplified Chinese catalog: complete, compiled, and shown."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from django.test import Client, override_settings

import django_redis_sync
from django_redis_sync import Semaphore

PACKAGE = Path(django_redis_sync.__file__).parent
FOLDER = Path("locale/zh_Hans/LC_MESSAGES")


@pytest.mark.promise(25)
def test_make_messages_writes_this_catalog(tmp_path: Path) -> None:
    """In a copy, the command changes nothing, and reports a new text without a translation."""
    if not all(map(shutil.which, ("xgettext", "msgfmt"))):
        pytest.skip("no GNU gettext: Debian has it as gettext")
    copied = tmp_path / PACKAGE.name
    shutil.copytree(PACKAGE, copied)
    (tmp_path / "devtools").mkdir()
    shutil.copy(PACKAGE.parent / "devtools/messages.py", tmp_path / "devtools")
    make = [sys.executable, "-m", "devtools.messages"]

    done = subprocess.run(make, cwd=tmp_path, capture_output=True, text=True)
    remedy = "run `make messages`, translate what it names in django.po, and run it again"
    assert (0, "") == (done.returncode, done.stdout + done.stderr), remedy
    for name in ("django.po", "django.mo"):
        assert (PACKAGE / FOLDER / name).read_bytes() == (copied / FOLDER / name).read_bytes(), (
            remedy
        )

    (copied / "new.py").write_text('_("for ever and a day")\n')
    done = subprocess.run(make, cwd=tmp_path, capture_output=True, text=True)
    assert (1, 'not translated yet: "for ever and a day"\n') == (done.returncode, done.stdout)


@pytest.mark.django_db
@pytest.mark.usefixtures("clean_redis")
def test_pages_are_shown_in_chinese(admin_client: Client) -> None:
    with override_settings(LANGUAGE_CODE="zh-hans"), Semaphore("exports", 2):
        shown = admin_client.get("/admin/django_redis_sync/name/exports/change/").content.decode()
        index = admin_client.get("/admin/").content.decode()

    assert "使用中 1 / 2" in shown and "没有等待者" in shown
    assert "锁与信号量" in index
