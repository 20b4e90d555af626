"""The site that the browser visits: a process of its own, with a database file of its own.

Arguments: the port. Prepares the database and two people: vera may view, manu may manage.
"""

import sys

import django
from django.core.management import call_command

PEOPLE = {"vera": ["view_locks"], "manu": ["view_locks", "manage_locks"]}
PASSWORD = "correct horse"


def prepare() -> None:
    from django.contrib.auth.models import Permission, User

    call_command("migrate", verbosity=0)
    ours = Permission.objects.filter(content_type__app_label="django_redis_sync")
    for name, codenames in PEOPLE.items():
        user = User.objects.create_user(name, password=PASSWORD, is_staff=True)
        user.user_permissions.set(ours.filter(codename__in=codenames))


if __name__ == "__main__":
    django.setup()
    prepare()
    call_command("runserver", f"127.0.0.1:{sys.argv[1]}", "--insecure", "--noreload")
