"""Authentication, limits and checks before the handlers."""

from __future__ import annotations

import psycopg

from tests.features.http_api.served import ServedApi, make_key


def test_a_key_says_what_it_may(api: ServedApi, db: psycopg.Connection) -> None:
    token = make_key(db, "shop", "send messages", tenant="t1", senders=["@shop.example"])
    answer = api.send("GET", "/v1/key", token)
    assert answer.status == 200, answer
    print(answer.headers)
    assert answer.members == {
        "name": "shop", "scopes": ["messages", "send"], "tenant": "t1",
        "senders": ["@shop.example"], "sees": "own",
    }  # fmt: skip
    for status, word, ask in [
        (401, "key-missing", {}),
        (401, "key-refused", {"token": token[:-1] + ("a" if token[-1] != "a" else "b")}),
        (401, "key-refused", {"token": "pgmta_nonsense"}),
    ]:
        answer = api.send("GET", "/v1/key", **ask)
        assert (answer.status, answer.members["type"]) == (status, f"urn:pgmta:problem:{word}")
