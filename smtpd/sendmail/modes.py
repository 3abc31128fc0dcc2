"""The modes of `sendmail`: submit, converse, show and flush."""

from __future__ import annotations

import os
import sys

from smtpd.sendmail import exits, settings
from smtpd.sendmail.addresses import listed
from smtpd.sendmail.exits import Exit
from smtpd.sendmail.maildrop import Maildrop
from smtpd.sendmail.message import SubmittedMessage, caller, qualified, until_dot
from smtpd.sendmail.options import HELP, SendmailOptions, parse
from smtpd.sendmail.settings import Settings
from smtpd.sendmail.smtp_client import Away, Deferred, Refused, SmtpClient
from smtpd.sendmail.submitted_envelope import SubmittedEnvelope

_MAX_LOST_CONNECTIONS = 20  # in a row, before the end of a message


def run(words: list[str], name: str) -> int:
    """Do what the command line asks for, and return the exit code."""
    try:
        options = parse(words)
        if options.mode == "help":
            print(HELP)
            return exits.OK
        if options.mode == "aliases":
            return exits.OK  # there is no file of aliases to rebuild
        if options.mode == "version":
            from importlib.metadata import version  # here, so that other modes start without it

            print(f"{name} (pgmta) {version('pgmta')}")
            return exits.OK
        if name == "mailq":
            options.mode = "list"
        found = settings.read()
        drop = Maildrop(found.directory)
        if options.mode == "flush":
            return flush(found, drop, verbose=options.verbose)
        if options.mode == "list":
            return show(drop)
        if options.mode == "smtp":
            return converse(found, drop)
        if options.mode == "verify":
            return verify(options, found)
        return submit(options, found, drop)
    except Exit as error:
        print(f"sendmail: {error.reason}", file=sys.stderr)
        return error.code


def submit(options: SendmailOptions, found: Settings, drop: Maildrop) -> int:
    """Send the message on standard input, or keep it until smtpd is back."""
    source = sys.stdin.buffer
    message = SubmittedMessage(until_dot(source) if options.dot_ends else source.read())
    envelope, domain = options.envelope, found.domain
    full_name = _address(options, domain)
    if options.from_header:
        envelope.recipients = list(dict.fromkeys(envelope.recipients + message.recipients(domain)))
    if not envelope.recipients:
        where = "and none in To, Cc or Bcc" if options.from_header else "(or -t)"
        raise Exit(exits.USAGE, f"no recipient in the command line {where}")
    message.complete(envelope.sender, options.full_name or full_name)
    content = message.octets
    try:
        client = SmtpClient(found, verbose=options.verbose)
        client.hello(domain)
        taken = client.send(envelope, content)
    except Refused as error:
        raise Exit(exits.UNAVAILABLE, f"smtpd refuses the message: {error}") from None
    except Away as error:
        reason = f"{error}; smtpd may have taken it" if error.unknown else str(error)
        name = drop.keep_message(envelope, content, reason)
        if options.verbose:
            print(f"sendmail: {reason}; the message waits as {name}", file=sys.stderr)
        return exits.OK
    client.quit()
    if taken.later:
        drop.keep_message(envelope.only(taken.later), content, "refused for now")
    for recipient, reply in taken.refused.items():
        print(f"sendmail: {recipient}: {reply}", file=sys.stderr)
    return exits.NO_USER if taken.refused else exits.OK


def _address(options: SendmailOptions, domain: str) -> str:
    """Complete the addresses of the command line, and return the name of the caller."""
    envelope = options.envelope
    login, full_name = caller()
    senders = [login] if options.sender is None else listed(options.sender, "-f")
    if len(senders) > 1:
        raise Exit(exits.DATA_ERROR, f"-f has more than one address: {', '.join(senders)}")
    envelope.sender = qualified("".join(senders), domain)
    named = [each for word in envelope.recipients for each in listed(word, "an argument") if each]
    envelope.recipients = list(dict.fromkeys(qualified(each, domain) for each in named))
    return full_name


def verify(options: SendmailOptions, found: Settings) -> int:
    """Print what smtpd says of each recipient (-bv), and send nothing."""
    _address(options, found.domain)
    if not options.envelope.recipients:
        raise Exit(exits.USAGE, "no recipient in the command line")
    try:
        client = SmtpClient(found, verbose=options.verbose)
        client.hello(found.domain)
        replies = client.ask(options.envelope)
    except Refused as error:
        raise Exit(exits.UNAVAILABLE, f"smtpd refuses the sender: {error}") from None
    except Away as error:
        raise Exit(exits.TEMPORARY, str(error)) from None
    client.quit()
    for recipient, reply in replies.items():
        print(f"{recipient}... {'deliverable' if reply[0] == '2' else reply}")
    firsts = {reply[0] for reply in replies.values()}
    return exits.NO_USER if "5" in firsts else exits.TEMPORARY if "4" in firsts else exits.OK


def converse(found: Settings, drop: Maildrop) -> int:
    """Let the caller speak SMTP with smtpd, or with this command while smtpd is away."""
    from smtpd.sendmail.dialogue import Dialogue
    from smtpd.sendmail.relay import Relay

    try:
        client = SmtpClient(found)
    except Away as error:
        away = str(error)

        def keep(envelope: SubmittedEnvelope, content: bytes) -> str:
            return drop.keep_message(envelope, content, away)

        Dialogue(sys.stdin.buffer, found.domain, keep).answer_commands()
        return exits.OK
    try:
        Relay(client.socket, sys.stdin.fileno(), sys.stdout.fileno()).run()
    except OSError as error:
        raise Exit(exits.TEMPORARY, f"connection lost: {error.strerror}") from None
    return exits.OK


def show(drop: Maildrop) -> int:
    """Print the messages that wait."""
    try:
        names = drop.names()
    except OSError as error:
        raise Exit(exits.TEMPORARY, f"can't read {drop.directory}: {error.strerror}") from None
    for name in names:
        try:
            with drop.take_message(name) as found:
                text = "is being sent"
                if found:
                    envelope, content = found
                    to = ", ".join(envelope.recipients)
                    text = f"{len(content)} octets from <{envelope.sender}> to {to}"
                    text = "".join(char if char.isprintable() else "?" for char in text)
        except (OSError, ValueError) as error:
            text = f"can't be read: {error}"
        print(f"{name}  {text}")
    if not names:
        print("No message waits.")
    return exits.OK


def flush(found: Settings, drop: Maildrop, *, verbose: bool) -> int:
    """Send the messages that wait; return 75 if some have to go on waiting."""
    try:
        drop.check_owner()
        drop.tidy()
        names, misnamed = drop.names(), drop.misnamed()
    except OSError as error:
        raise Exit(exits.TEMPORARY, f"can't read {drop.directory}: {error.strerror}") from None
    for name in misnamed:
        _set_aside(drop, name, "its name is none of a message")
    client: SmtpClient | None = None
    left = lost = 0
    for name in names:
        try:
            if client is None:
                client = SmtpClient(found, verbose=verbose)
                client.hello(found.domain)
            _send_kept(client, drop, name, verbose=verbose)
            lost = 0
        except Away as error:
            left += 1
            print(f"sendmail: {name}: {error}", file=sys.stderr)
            lost = 0 if isinstance(error, Deferred) else lost + 1
            if (
                client is None or lost >= _MAX_LOST_CONNECTIONS
            ):  # so many in a row mean that smtpd is away
                return exits.TEMPORARY
            client.close()
            client = None
        except (Refused, ValueError) as error:
            _set_aside(drop, name, str(error))
            if client:
                client.close()  # because its transaction may still be open
                client = None
        except FileNotFoundError:
            continue  # another command has sent this mail
        except (OSError, Exit) as error:
            left += 1
            print(f"sendmail: {os.path.join(drop.directory, name)}: {error}", file=sys.stderr)
    if client:
        client.quit()
    return exits.TEMPORARY if left else exits.OK


def _set_aside(drop: Maildrop, name: str, reason: str) -> None:
    named = name if name.isprintable() and name.isascii() else ascii(name)
    try:
        new = drop.set_aside(name)
    except OSError as error:  # the owner of the file may have changed or removed it
        print(f"sendmail: {named} can't be set aside: {error.strerror}", file=sys.stderr)
        return
    print(f"sendmail: {named} is set aside as {new}: {reason}", file=sys.stderr)


def _send_kept(client: SmtpClient, drop: Maildrop, name: str, *, verbose: bool) -> None:
    with drop.take_message(name, client.largest) as found:
        if not found:
            return
        envelope, content = found
        taken = client.send(envelope, content)
        for recipient, reply in taken.refused.items():
            print(f"sendmail: {name}: {recipient}: {reply}", file=sys.stderr)
        if taken.refused:
            rest = envelope.only(list(taken.refused))
            drop.set_aside(drop.keep_message(rest, content, "refused"))
        if taken.later:
            rest = envelope.only(taken.later)
            drop.keep_message(rest, content, "refused for now", name)
        else:
            drop.remove_message(name)
        if verbose:
            print(f"sendmail: {name}: {taken.reply}", file=sys.stderr)
