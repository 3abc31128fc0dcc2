"""A page that shows composed mail in a browser."""

from __future__ import annotations

import os
import tempfile
import webbrowser
from html import escape
from pathlib import Path

from pgmta.compose.parts import Parts

# No script runs and nothing is loaded, because the frame inherits the policy of the page.
_PAGE = """\
<!DOCTYPE html>
<html>
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
    content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{subject}</title>
<style>
pre {{ white-space: pre-wrap; border: 1px solid; padding: 1em }}
iframe {{ width: 100%; height: 80vh; border: 1px solid }}
</style>
</head>
<body>
<pre>{fields}</pre>
{texts}</body>
</html>
"""


def mail_page(parts: Parts) -> str:
    """Return a page with the fields, the text and the html of mail. Its html is in a sandbox."""
    mailboxes = [("From", parts.from_), *(("Reply-To", each) for each in parts.reply_to)]
    mailboxes += [("To", each) for each in parts.to]
    fields = [f"{field}: {name} <{address}>" for field, (name, address) in mailboxes]
    fields += [f"Subject: {parts.subject}"]
    fields += [f"{name}: {value}" for name, value in parts.headers]
    texts = ""
    if parts.body is not None:
        texts += f"<pre>{escape(parts.body)}</pre>\n"
    if parts.html is not None:
        texts += f'<iframe sandbox srcdoc="{escape(parts.html)}"></iframe>\n'
    return _PAGE.format(
        subject=escape(parts.subject), fields=escape("\n".join(fields)), texts=texts
    )


def open_page(page: str) -> tuple[Path, bool]:
    """Open a page in the browser. Return its file, and whether a browser was found.

    The file stays, because browsers read it later. Only its owner may read it.
    """
    number, name = tempfile.mkstemp(prefix="pgmta-", suffix=".html")
    with os.fdopen(number, "w", encoding="utf-8") as file:
        file.write(page)
    path = Path(name)
    return path, webbrowser.open(path.as_uri())
