"""A shop whose receipts belong to the transactions of its orders."""
