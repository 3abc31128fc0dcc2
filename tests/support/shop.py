"""A shop as a program: orders and their mails in one transaction each. Run by the scenario."""

from __future__ import annotations

import random
import sys

import psycopg

from tests.support.waiting import take_time

CONTENT = b"Subject: Order %d\r\n\r\nThank you.\r\n"
AGAIN = 0.05  # seconds until it connects again


class Refused(Exception):
    """The shop changes its mind after it has submitted the mail."""


def sell(uri: str, seed: str, first: int, count: int) -> None:
    """Take `count` orders, with numbers from `first` on; some roll back, some go in savepoints."""
    chance = random.Random(seed)
    for number in range(first, first + count):
        once, rollback = chance.random() < 0.3, chance.random() < 0.15
        while True:
            try:
                with psycopg.connect(uri, connect_timeout=3) as db:
                    order(db, number, once=once, rollback=rollback, savepoint=chance.random() < 0.2)
                break
            except Refused:
                break
            except psycopg.errors.UniqueViolation:
                break  # committed, but the answer was lost
            except psycopg.OperationalError:
                take_time(AGAIN)


def order(
    db: psycopg.Connection, number: int, *, once: bool, rollback: bool, savepoint: bool
) -> None:
    """Insert an order and submit its mail."""
    db.execute("INSERT INTO public.orders (id, once) VALUES (%s, %s)", (number, once))
    if savepoint:
        try:
            with db.transaction():
                submit(db, number, f"never{number}", once=once)
                raise Refused
        except Refused:
            pass
    submit(db, number, f"order{number}", once=once)
    if rollback:
        raise Refused


def submit(db: psycopg.Connection, number: int, local: str, *, once: bool) -> None:
    """Submit the mail of an order."""
    db.execute(
        "SELECT pgmta.submit('shop@example.org', ARRAY[%s], %s, once => %s, on_failed => 'hold')",
        (f"{local}@hop{number % 7}.example", CONTENT % number, once),
    )


if __name__ == "__main__":
    sell(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
