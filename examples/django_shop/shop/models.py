"""The orders."""

from django.db import models


class Order(models.Model):
    """Holds the order of a buyer, and the message id of the receipt. A voucher counts once."""

    buyer = models.EmailField()
    item = models.CharField(max_length=100)
    voucher = models.CharField(max_length=20, null=True, unique=True)
    receipt = models.BigIntegerField(null=True)
