"""A FastAPI shop with SQLAlchemy, which mails a receipt for each order.

    export DATABASE=postgresql+psycopg://shop@localhost/shop
    uvicorn --app-dir examples fastapi_shop:app --port 8000
    curl --json '{"buyer": "ann@example.com", "item": "lamp"}' localhost:8000/orders
    curl localhost:8000/orders/1

pgmta is in that database, and the login has the role pgmta_submit (docs/programs/sqlalchemy.md).
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import pgmta

engine = create_async_engine(os.environ["DATABASE"])


class Base(DeclarativeBase):
    """The tables of the shop."""


class Order(Base):
    """Holds the order of a buyer, and the message id of the receipt. A voucher counts once."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    buyer: Mapped[str]
    item: Mapped[str]
    voucher: Mapped[str | None] = mapped_column(unique=True)
    receipt: Mapped[int]


class Wish(BaseModel):
    """The body of a request."""

    buyer: str
    item: str
    voucher: str | None = None


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Make the table, and close the connections at the end."""
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    await engine.dispose()


async def transaction() -> AsyncIterator[AsyncSession]:
    """Give a request its transaction, which commits before the answer goes out."""
    async with AsyncSession(engine) as session, session.begin():
        yield session


app = FastAPI(lifespan=lifespan)
# FastAPI would commit after the answer: with this scope a failed COMMIT is an error of the request
Transaction = Annotated[AsyncSession, Depends(transaction, scope="function")]


@app.post("/orders", status_code=201)
async def order(wish: Wish, session: Transaction) -> dict[str, int]:
    """Take an order: it and its receipt are stored together, or neither of them is."""
    receipt = pgmta.Mail(
        sender="shop@example.org",
        from_="Shop <shop@example.org>",
        to=[wish.buyer],
        subject="Your receipt",
        body=f"Thank you for the {wish.item}.\n",
        tenant="shop",
    )
    try:
        row = Order(**wish.model_dump(), receipt=await pgmta.enqueue(session, receipt))
        session.add(row)
        await session.flush()
    except pgmta.SubmissionError as error:
        raise HTTPException(422, str(error)) from None
    except IntegrityError:  # another order has the voucher: no receipt is sent
        raise HTTPException(409, "this voucher was used") from None
    return {"order": row.id}


@app.get("/orders/{number}")
async def show(number: int, session: Transaction) -> dict[str, object]:
    """Return an order, and where its receipt is."""
    row = await session.get(Order, number)
    if row is None:
        raise HTTPException(404, "no such order")
    asked = text("SELECT recipient, state FROM pgmta.status(:ids)").bindparams(ids=[row.receipt])
    found = await session.execute(asked)
    return {"item": row.item, "receipt": {each.recipient: each.state for each in found}}
