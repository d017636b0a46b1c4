from django.db import migrations, models


class Migration(migrations.Migration):
    # With defaults of the database's own: processes of the version before insert rows without them.
    dependencies = [("workpool", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="worker",
            name="left",
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddField(
            model_name="worker",
            name="lockless",
            field=models.BooleanField(db_default=False, default=False),
        ),
    ]
