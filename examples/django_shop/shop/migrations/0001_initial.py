"""The table of orders."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Creates it."""

    initial = True
    operations = (
        migrations.CreateModel(
            "Order",
            (
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("buyer", models.EmailField(max_length=254)),
                ("item", models.CharField(max_length=100)),
                ("voucher", models.CharField(max_length=20, null=True, unique=True)),
                ("receipt", models.BigIntegerField(null=True)),
            ),
        ),
    )
