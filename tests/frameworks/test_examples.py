"""The shops of examples/ take orders by HTTP: each receipt goes with its order, or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.support.daemons import ROOT
from tests.support.rows import column, fetch
from tests.support.shop_login import shop_login, url
from tests.support.waiting import free_port, until

EXAMPLES = ROOT / "examples"


@dataclass
class Shop:
    """A program that runs, and its table of orders."""

    address: str
    table: str
    encode: Callable[[dict[str, str]], tuple[bytes, str]]

    def get(self, path: str) -> tuple[int, Any]:
        return self._ask(Request(self.address + path))

    def order(self, **given: str) -> tuple[int, Any]:
        body, kind = self.encode(given)
        return self._ask(Request(f"{self.address}/orders", body, {"Content-Type": kind}))

    def _ask(self, request: Request) -> tuple[int, Any]:
        try:
            with urlopen(request, timeout=60) as reply:
                return reply.status, json.load(reply)
        except HTTPError as error:
            return error.code, error.read().decode()


@contextmanager
def running(command: list[str], log: Path, **variables: str) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=output, stderr=output, env={**os.environ, **variables}
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def answers(shop: Shop) -> bool:
    try:
        return shop.get("/orders/1")[0] == 404
    except URLError:
        return False


@contextmanager
def django(uri: str, folder: Path) -> Iterator[Shop]:
    given = conninfo_to_dict(uri)
    names = {"host": "HOST", "port": "PORT", "user": "USER", "password": "PASSWORD"}
    variables = {f"PG{names[k]}": str(v) for k, v in given.items() if k in names}
    variables["PGDATABASE"] = str(given["dbname"])
    manage, port = [sys.executable, str(EXAMPLES / "django_shop" / "manage.py")], free_port()
    done = subprocess.run(
        [*manage, "migrate"], env={**os.environ, **variables}, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    command = [*manage, "runserver", "--noreload", str(port)]
    with running(command, folder / "log", **variables):
        yield Shop(
            f"http://127.0.0.1:{port}", "shop_order",
            lambda order: (urlencode(order).encode(), "application/x-www-form-urlencoded"),
        )  # fmt: skip


@contextmanager
def fastapi(uri: str, folder: Path) -> Iterator[Shop]:
    port = free_port()
    command = [
        sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLES), "fastapi_shop:app",
        "--port", str(port),
    ]  # fmt: skip
    with running(command, folder / "log", DATABASE=url(uri, "postgresql+psycopg")):
        yield Shop(
            f"http://127.0.0.1:{port}", "orders",
            lambda order: (json.dumps(order).encode(), "application/json"),
        )  # fmt: skip


@pytest.fixture(params=[django, fastapi], ids=lambda way: way.__name__)
def shop(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> Iterator[Shop]:
    with shop_login(database) as uri, request.param(uri, tmp_path) as made:
        until(lambda: answers(made), describe=f"an answer; {tmp_path}/log says why")
        yield made


@pytest.mark.slow
def test_the_shop_sends_a_receipt_with_each_order(shop: Shop, db: psycopg.Connection) -> None:
    def stored() -> tuple[list[str], list[str]]:
        orders = column(db, f"SELECT buyer FROM public.{shop.table} ORDER BY id")
        return orders, column(db, "SELECT recipient FROM queue ORDER BY id")

    status, answer = shop.order(buyer="ann@example.com", item="lamp", voucher="SPRING")
    assert (status, answer) == (201, {"order": 1})
    assert shop.get("/orders/1") == (
        200, {"item": "lamp", "receipt": {"ann@example.com": "queued"}},
    )  # fmt: skip
    assert stored() == (["ann@example.com"], ["ann@example.com"])
    status, answer = shop.order(buyer="bob@example.com", item="lamp", voucher="SPRING")
    assert (status, "this voucher was used" in answer) == (409, True)
    status, answer = shop.order(buyer="no address", item="lamp")
    assert status == 422
    # the COMMIT fails: neither the order nor its receipt is there, and the client hears of it
    db.execute(
        "CREATE FUNCTION public.sold_out() RETURNS trigger LANGUAGE plpgsql AS $$"
        " BEGIN RAISE EXCEPTION 'sold out' USING ERRCODE = '23514'; END $$;"
        f"CREATE CONSTRAINT TRIGGER sold_out AFTER INSERT ON public.{shop.table}"
        " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.item = 'sofa')"
        " EXECUTE FUNCTION public.sold_out()".encode()
    )
    assert shop.order(buyer="dora@example.com", item="sofa")[0] >= 400
    assert stored() == (["ann@example.com"], ["ann@example.com"])
    assert shop.order(buyer="emil@example.com", item="lamp")[0] == 201
    assert stored()[1] == ["ann@example.com", "emil@example.com"]
    (receipt,) = fetch(db, f"SELECT receipt FROM public.{shop.table} WHERE buyer LIKE 'ann@%'")
    assert column(db, "SELECT message_id FROM queue WHERE recipient LIKE 'ann@%'") == [receipt]
