"""The model behind the admin's entry causes no migration, query, or dump in a project."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from django.contrib.auth.models import Permission
from django.core import checks
from django.core.management import call_command

from django_redis_sync.models import Name
from tests.support import worker_processes

SETTINGS = """
from tests.settings import *
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": {database!r}}}}}
INSTALLED_APPS = [*INSTALLED_APPS, "shop"]
{more}
"""
MODELS = """
from django.db import models

class Sale(models.Model):
    amount = models.IntegerField()
"""


class HostProject:
    """A project with an app of its own in a folder."""

    def __init__(self, folder: Path, more: str = "") -> None:
        (folder / "shop").mkdir()
        (folder / "shop/__init__.py").touch()
        (folder / "shop/models.py").write_text(MODELS)
        database = str(folder / "db.sqlite3")
        (folder / "host.py").write_text(SETTINGS.format(database=database, more=more))
        self.folder = folder

    def manage(self, *words: str) -> "subprocess.CompletedProcess[str]":
        here = Path(__file__).parent.parent
        environment = {
            **os.environ,
            "PYTHONPATH": f"{self.folder}{os.pathsep}{here}",
            "DJANGO_SETTINGS_MODULE": "host",
        }
        return worker_processes.run("-W", "error", "-m", "django", *words, env=environment)


def test_project_migrates_dumps_and_needs_no_migrations(tmp_path: Path) -> None:
    project = HostProject(tmp_path)
    made = project.manage("makemigrations", "shop")
    assert made.returncode == 0, made.stderr
    checked = project.manage("makemigrations", "--check", "--dry-run")
    assert checked.returncode == 0, checked.stdout
    assert "No changes detected" in checked.stdout
    migrated = project.manage("migrate", "--verbosity=0")
    assert migrated.returncode == 0, migrated.stderr

    for words in (["dumpdata"], ["dumpdata", "--all"], ["dumpdata", "django_redis_sync"]):
        dumped = project.manage(*words)
        assert dumped.returncode == 0, dumped.stderr
        models = {row["model"] for row in json.loads(dumped.stdout)}
        assert not any(model.startswith("django_redis_sync") for model in models)


@pytest.mark.parametrize("more", ["", 'DEFAULT_AUTO_FIELD = "django.db.models.AutoField"'])
def test_default_auto_field_needs_no_migration(tmp_path: Path, more: str) -> None:
    project = HostProject(tmp_path, more)
    assert "django_redis_sync" not in project.manage("check").stderr
    assert project.manage("makemigrations", "django_redis_sync", "--check").returncode == 0


def test_project_without_an_admin_works(tmp_path: Path) -> None:
    bare = 'INSTALLED_APPS = ["django_redis_sync"]; MIDDLEWARE = []; ROOT_URLCONF = "shop"'
    project = HostProject(tmp_path, bare)
    (tmp_path / "shop/__init__.py").write_text("urlpatterns = []")
    for words in (["check", "--fail-level=ERROR"], ["migrate", "--verbosity=0"], ["dumpdata"]):
        done = project.manage(*words)
        assert done.returncode == 0, done.stderr


@pytest.mark.django_db
def test_migrations_are_complete() -> None:
    call_command("makemigrations", "django_redis_sync", check=True, dry_run=True, verbosity=0)


def test_system_checks_report_no_problem() -> None:
    assert [found for found in checks.run_checks() if found.is_serious()] == []


@pytest.mark.django_db
def test_model_has_no_table_and_sends_no_queries(
    django_assert_num_queries: object,
) -> None:
    assert not Name._meta.managed
    with django_assert_num_queries(0):  # type: ignore[operator]
        assert list(Name.objects.all()) == list(Name._base_manager.filter(id="x")) == []
        assert Name.objects.count() == 0


@pytest.mark.django_db
def test_permissions_are_view_and_manage() -> None:
    ours = Permission.objects.filter(content_type__app_label="django_redis_sync")
    assert set(ours.values_list("codename", flat=True)) == {"view_locks", "manage_locks"}
