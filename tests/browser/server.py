"""Run the site that the browser visits. The argument is the port.

Create the database and two users. vera has the view permission, and manu the manage permission.
"""

import sys

import django
from django.core.management import call_command

if __name__ == "__main__":
    django.setup()
    from django.contrib.auth.models import Permission, User

    call_command("migrate", verbosity=0)
    permissions = Permission.objects.filter(content_type__app_label="django_redis_sync")
    for name, codenames in {"vera": ["view_locks"], "manu": ["view_locks", "manage_locks"]}.items():
        user = User.objects.create_user(name, password="correct horse", is_staff=True)
        user.user_permissions.set(permissions.filter(codename__in=codenames))
    call_command("runserver", f"127.0.0.1:{sys.argv[1]}", "--insecure", "--noreload")
