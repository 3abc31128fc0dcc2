"""The way out: workers, delivery, upkeep, and the commands of operators."""
