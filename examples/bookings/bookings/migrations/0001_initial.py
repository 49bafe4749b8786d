"""The tables of this project, of messagebus' outbox and of its inbox."""

from typing import Any

from django.db import migrations, models

from messagebus import Outbox
from messagebus.inbox import inbox_ddl


def create_tables_of_messages(_apps: Any, schema_editor: Any) -> None:
    database = schema_editor.connection.vendor
    for statement in (*Outbox().ddl(database), inbox_ddl(database)):
        schema_editor.execute(statement)


class Migration(migrations.Migration):
    initial = True
    dependencies: list[tuple[str, str]] = []
    operations = [
        migrations.CreateModel(
            name="Guest",
            fields=[
                ("name", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("points", models.PositiveIntegerField(default=0)),
            ],
        ),
        migrations.CreateModel(
            name="Booking",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("room", models.CharField(max_length=16)),
                ("night", models.DateField()),
                ("guest", models.CharField(max_length=64)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("room", "night"),
                        name="one_guest_a_night",
                        violation_error_message="the room is taken that night",
                    )
                ],
            },
        ),
        migrations.RunPython(create_tables_of_messages),
    ]
