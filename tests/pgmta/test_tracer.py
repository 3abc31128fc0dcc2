"""The tracer of the tests: what it sees, and what it leaves out."""

from __future__ import annotations

from pgmta.mail.address import parse_mailbox
from pgmta.model import Reply
from tests.support.tracer import traced, usual


def test_each_function_is_named_once_in_the_order_of_its_first_call() -> None:
    """Generated methods, such as Reply's, are not seen; a second trace sees the same again."""
    for _ in range(2):
        with traced() as calls:
            parse_mailbox("local@traced.example", utf8=False)
            assert Reply(250, "2.0.0 ok").enhanced == "2.0.0"
            parse_mailbox("local@traced.example", utf8=False)
        assert calls[0] == "pgmta/mail/address.py: parse_mailbox"
        assert calls[-1] == "pgmta/model.py: Reply.enhanced"
        assert len(calls) == len(set(calls))


def test_the_usual_way_leaves_out_other_work() -> None:
    """One trace has a function more, and begins with one that the way calls later."""
    assert usual(["abc", "cab", "abxc", "abc"]) == ["a", "b", "c"]
