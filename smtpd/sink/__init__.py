"""The development sink: it keeps mail in a Maildir, and shows it on a page for this machine."""
