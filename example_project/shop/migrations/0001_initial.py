"""The tables of a sale and its tickets."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Sale",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("tickets", models.IntegerField()),
                ("stock", models.IntegerField()),
                ("opened_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "get_latest_by": "pk",
            },
        ),
        migrations.CreateModel(
            name="Ticket",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("number", models.IntegerField()),
                ("buyer", models.CharField(max_length=100)),
                ("worker", models.IntegerField(help_text="pid of the worker that sold it")),
                ("sold_at", models.DateTimeField(auto_now_add=True)),
                (
                    "sale",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="sold",
                        to="shop.sale",
                    ),
                ),
            ],
        ),
    ]
