from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Name",
            fields=[
                ("id", models.CharField(max_length=1300, primary_key=True, serialize=False)),
            ],
            options={
                "verbose_name": "lock or semaphore",
                "verbose_name_plural": "locks and semaphores",
                "permissions": [
                    ("view_locks", "Can view locks and semaphores"),
                    ("manage_locks", "Can release, pause and resize locks and semaphores"),
                ],
                "managed": False,
                "default_permissions": (),
                "base_manager_name": "objects",
            },
        ),
    ]
