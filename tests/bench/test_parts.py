"""The mail of bench/composed: all forms are one mail, and the ledger finds a change."""

from datetime import UTC, datetime

import pytest

from bench.corpus import Plan, stuff
from bench.parts import PartsCorpus, PartsLedger
from pgmta.compose.composed_message import parts_for, read_composition
from pgmta.compose.mime import MessageIdentity, compose_head

TRACE = b"Received: by bench\r\n"


@pytest.mark.parametrize("umlauts", [False, True])
def test_the_ledger_knows_each_form_and_finds_a_change(umlauts: bool) -> None:
    corpus = PartsCorpus(Plan("run", 9, 4096, 1, 1), umlauts)
    ledger = PartsLedger(corpus, traces=1)
    _, template = corpus.template()
    forms = [corpus.as_sent(0)]
    for form, texts in corpus.compositions(1).items():
        parts = parts_for(
            read_composition(texts[0]).params, template if form == "template" else None
        )
        assert (parts.body, parts.html) == (corpus.params(0)["body"], corpus.params(0)["html"])
        forms.append(compose_head(parts, MessageIdentity("<1.0a@b.example>", datetime.now(UTC))))
    assert len((corpus.text + corpus.html).encode()) == pytest.approx(4096, rel=0.05)
    for content in forms:
        ledger.store(corpus.sender(0), [corpus.recipient(0, 0)], TRACE + stuff(content))
    assert (ledger.wrong, ledger.seen[0]) == ({}, 3)
    place = forms[1].rindex(b"morgen" if umlauts else b"tomorrow")
    changed = forms[1][:place] + b"T" + forms[1][place + 1 :]
    ledger.store(corpus.sender(0), [corpus.recipient(0, 0)], TRACE + stuff(changed))
    ledger.store(corpus.sender(0), [corpus.recipient(0, 0)], TRACE + TRACE + stuff(forms[1]))
    assert ledger.wrong == {"altered content": 1, "wrong trace header": 1}
