"""Mail of text and html in the four forms of bench/composed, and the ledger that compares it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bench.corpus import Corpus, stuff
from bench.ledger import RECEIVED, Ledger
from pgmta.compose.mime import MessageIdentity, compose_head, encode_text
from pgmta.compose.parts import parts_of
from pgmta.compose.template import Template, TemplateSource, compile_template
from pgmta.store.changes.templates import NamedTemplate

SENDER = "shop@from.bench.test"
LINES = {
    False: "Thank you for your order. We send it tomorrow, with a mail when it is on its way.",
    True: "Vielen Dank für Ihre Bestellung. Wir schicken sie morgen zu Ihnen; Grüße aus Köln.",
}
"""The line of which texts consist, without and with umlauts."""
NAMES = {False: "Ann Miller", True: "Jürgen Müller"}
MARKER = b"--=_"


@dataclass
class PartsCorpus(Corpus):
    """Messages whose text and html have `plan.size` octets together; only the number differs.

    The text begins with the number. The sink finds the encoded texts, and does not know Message-ID,
    Date and boundaries.
    """

    umlauts: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        line = LINES[self.umlauts]
        number = max(1, self.plan.size // 2 // len(line.encode()))
        self.text = f"{line}\n" * number
        self.html = f"<p>{line}</p>\n" * max(1, number * len(line) // (len(line) + 7))
        self.found = [stuff(encode_text(text, MARKER)[1]) for text in (self.text, self.html)]
        self.name = NAMES[self.umlauts]
        self.prefix = f"Order {self.plan.run}-".encode()

    def sender(self, n: int) -> bytes:
        """Return the envelope sender."""
        return SENDER.encode()

    def params(self, n: int) -> dict[str, Any]:
        """Return the parts of message n, as `messages.params` has them."""
        return {
            "from": ["The Shop", SENDER],
            "to": [["", self.recipient(n, 0).decode()]],
            "subject": f"Order {n} of {self.name}",
            "body": f"{self.prefix.decode()}{n}\nHello {self.name},\n{self.text}",
            "html": f"<p>Hello <b>{self.name}</b>,</p>\n{self.html}",
        }

    def words(self, n: int) -> dict[str, Any]:
        """Return the words by which the template makes the same message."""
        return {"number": n, "name": self.name}

    def template(self) -> tuple[TemplateSource, Template]:
        """Return the template, as it is written and compiled."""
        source = TemplateSource(
            sender=SENDER,
            from_=f"The Shop <{SENDER}>",
            subject="Order {{number}} of {{name}}",
            body=self.prefix.decode() + "{{number}}\nHello {{name}},\n" + self.text,
            html="<p>Hello <b>{{name}}</b>,</p>\n" + self.html,
        )
        return source, compile_template(source)

    def named(self, number: int) -> NamedTemplate:
        """Return the template as the table takes it, under a name with that number."""
        return NamedTemplate("", f"order.{number}", *self.template())

    def as_sent(self, n: int) -> bytes:
        """Return message n as content of RFC 5322."""
        identity = MessageIdentity(
            f"<{n}.0123456789abcdef@bench.test>", datetime(2026, 1, 1, tzinfo=UTC)
        )
        return compose_head(parts_of(self.params(n)), identity)

    def is_wire(self, n: int, content: bytes) -> bool:
        """Return whether the content has both texts as they were given, and its end."""
        return content.endswith(b"a--\r\n") and all(content.find(text) > 0 for text in self.found)

    def compositions(self, number: int) -> dict[str, list[str]]:
        """Return as many compositions as workers read them, with parts, and for a template."""
        to = [["", self.recipient(0, 0).decode()]]
        return {
            "parts": [json.dumps([None, self.params(n)]) for n in range(number)],
            "template": [
                json.dumps([1, {"to": to, "words": self.words(n)}]) for n in range(number)
            ],
        }


class PartsLedger(Ledger):
    """The arrived mail; the rest of the header is between Received and the number."""

    def _trace(self, n: int, trace: bytes) -> None:
        if not RECEIVED.match(trace) or trace.count(b"Received:") != 1:
            self.fault("wrong trace header", f"message {n}: {trace[:300]!r}")


RAW, PARTS, TEMPLATE, TEMPLATES = "raw", "parts", "template", "templates"
KINDS = (RAW, PARTS, TEMPLATE, TEMPLATES)
"""Forms of submission: content, parts, one template, and many templates in turn."""

STATEMENTS = {
    RAW: """SELECT count(pgmta.submit(%b::text, ARRAY[one.recipient], one.content))
FROM unnest(%b::text[], %b::bytea[]) AS one (recipient, content)""",
    PARTS: """SELECT count(pgmta.submit_mail(%b::text, ARRAY[one.recipient], one.subject, one.body,
    one.html, "from" => 'The Shop <shop@from.bench.test>'))
FROM unnest(%b::text[], %b::text[], %b::text[], %b::text[])
    AS one (recipient, subject, body, html)""",
    TEMPLATE: """SELECT count(pgmta.submit_template(one.template, one.recipient, one.words::jsonb))
FROM unnest(%b::text[], %b::text[], %b::text[]) AS one (recipient, template, words)""",
}
STATEMENTS[TEMPLATES] = STATEMENTS[TEMPLATE]


def arguments(corpus: PartsCorpus, kind: str, numbers: range, templates: int) -> list[Any]:
    """Return the parameters of the statement that submits these messages."""
    columns: list[Callable[[int], Any]] = [lambda n: corpus.recipient(n, 0).decode()]
    first: list[Any] = [SENDER]
    if kind == RAW:
        columns.append(corpus.as_sent)
    elif kind == PARTS:
        columns += [lambda n, key=key: corpus.params(n)[key] for key in ("subject", "body", "html")]  # type: ignore[misc]
    else:
        many = templates if kind == TEMPLATES else 1
        columns += [lambda n: f"order.{n % many}", lambda n: json.dumps(corpus.words(n))]
        first = []
    return first + [[column(n) for n in numbers] for column in columns]
