"""Providers: a row goes out as a request to the HTTP interface of a provider of mail or SMS.

docs/mail/http.md has its keys, docs/mail/providers.md the described interfaces, docs/mail/sms.md
telephone numbers.
"""

from pgmta.features import Feature

FEATURE = Feature(transports={"http": ".http_transport:HTTP"})
