"""A project needs no migrations for the app's admin. The app's translations are up to date."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from django.contrib.auth.models import Permission

import django_redis_sync
from django_redis_sync.models import Name
from tests.support import worker_processes

PACKAGE = Path(django_redis_sync.__file__).parent
SETTINGS = """
from tests.settings import *
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": {database!r}}}}}
{more}
"""
BARE = 'INSTALLED_APPS = ["django_redis_sync"]; MIDDLEWARE = []; ROOT_URLCONF = "bare"'


def test_library_needs_no_migrations_even_if_the_admin_is_installed(tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text("urlpatterns = []")
    paths = f"{tmp_path}{os.pathsep}{PACKAGE.parent}"
    environment = {**os.environ, "PYTHONPATH": paths, "DJANGO_SETTINGS_MODULE": "host"}

    def manage(*words: str, more: str = "") -> str:
        """Run a management command, and return its output. `more`: lines of the settings file."""
        text = SETTINGS.format(database=str(tmp_path / "db.sqlite3"), more=more)
        (tmp_path / "host.py").write_text(text)
        done = worker_processes.run("-W", "error", "-m", "django", *words, env=environment)
        assert 0 == done.returncode, done.stderr
        return done.stdout

    for words in (["check", "--fail-level=WARNING"], ["migrate", "--verbosity=0"], ["dumpdata"]):
        manage(*words, more=BARE)
    for more in ("", 'DEFAULT_AUTO_FIELD = "django.db.models.AutoField"'):
        assert "No changes" in manage("makemigrations", "--check", "--dry-run", more=more)
    manage("migrate", "--verbosity=0")
    for words in (["dumpdata"], ["dumpdata", "--all"], ["dumpdata", "django_redis_sync"]):
        models = {row["model"] for row in json.loads(manage(*words))}
        assert not any(model.startswith("django_redis_sync") for model in models)


@pytest.mark.django_db
def test_admin_model_sends_no_queries_and_has_two_permissions(
    django_assert_num_queries: object,
) -> None:
    with django_assert_num_queries(0):  # type: ignore[operator]
        assert [] == list(Name.objects.all()) == list(Name._base_manager.filter(id="x"))
    own = Permission.objects.filter(content_type__app_label="django_redis_sync")
    assert {"view_locks", "manage_locks"} == {*own.values_list("codename", flat=True)}
    invalid = "{x}:leases"
    assert invalid == str(Name(id=invalid))


@pytest.mark.promise(25)
def test_make_messages_command_reports_only_texts_without_a_translation(
    tmp_path: Path,
) -> None:
    """`make messages` runs in a copy of the package, before and after a text is added."""
    if not all(map(shutil.which, ("xgettext", "msgfmt"))):
        pytest.skip("no GNU gettext: Debian has it as gettext")
    copied, folder = tmp_path / PACKAGE.name, "locale/zh_Hans/LC_MESSAGES"
    shutil.copytree(PACKAGE, copied)
    shutil.copytree(PACKAGE.parent / "devtools", tmp_path / "devtools")

    def make() -> tuple[int, str]:
        words = [sys.executable, "-m", "devtools.messages"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    remedy = "run `make messages`, translate what it names in django.po, and run it again"
    assert (0, "") == make(), remedy
    for name in (f"{folder}/django.po", f"{folder}/django.mo"):
        assert (PACKAGE / name).read_bytes() == (copied / name).read_bytes(), remedy
    (copied / "new.py").write_text('_("for ever and a day")\n')
    assert (1, 'not translated yet: "for ever and a day"\n') == make()
