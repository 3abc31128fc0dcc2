"""The options of `sendmail`, in the form in which programs have given them for decades."""

from __future__ import annotations

import re
from collections.abc import Iterator

from smtpd.sendmail.exits import USAGE, Exit
from smtpd.sendmail.submitted_envelope import SubmittedEnvelope

_WITH_VALUE = "ABCFLNORVXbdfhopqr"
_WITH_ATTACHED_VALUE = "Abdopq"  # never the next argument
_MODES = {"m": "message", "s": "smtp", "p": "list", "v": "verify", "i": "aliases"}
_BODIES = {"7BIT": "7BIT", "8BITMIME": "8BITMIME"}
_NOTIFY = frozenset(("SUCCESS", "FAILURE", "DELAY"))
_RET = {"FULL": "FULL", "HDRS": "HDRS", "HEADERS": "HDRS"}
HELP = """\
Usage: sendmail [OPTIONS] [ADDRESSES ...] < MESSAGE
       mailq

Give a message to smtpd. While smtpd is away, it waits in a directory.
ADDRESSES is a list as in the field To, such as 'Ann <ann@a.example>, bob'.

  -t            take recipients from To, Cc and Bcc as well, and remove Bcc
  -i, -oi       a line with only a dot does not end the message
  -f ADDRESS    the reverse-path (also -r); <> is the null one
  -F NAME       the name in From, if the message has no From
  -N WORDS      never, or a list of success, failure and delay
  -R WORD       how much of the message a report has: full or hdrs
  -V ID         the envelope id of reports
  -B KIND       7BIT or 8BITMIME
  -bs           speak SMTP on standard input and output
  -bp           list the messages that wait, as mailq does
  -bv           say whether smtpd takes the recipients, and send nothing
  -q            send the messages that wait
  -v            print the conversation to standard error
  --version     print the version

Exit codes: 0 taken or waiting; 64 wrong option, or no recipient; 65 wrong
address; 67 some recipients refused; 69 message refused; 75 neither taken nor
kept; 78 wrong settings."""

_XTEXT = re.compile(r"[!-*,-<>-~]")  # characters that stand for themselves (RFC 3461, section 4)


class SendmailOptions:
    """The choices of the command line."""

    def __init__(self) -> None:
        self.mode = "message"
        """`message`, `smtp` (-bs), `list` (-bp), `verify` (-bv), `aliases` (-bi), `flush` (-q),
        `help` or `version`."""
        self.from_header = False
        """-t: the recipients are in To, Cc and Bcc."""
        self.dot_ends = True
        """A line with only a dot ends the message; -i and -oi turn it off."""
        self.sender: str | None = None
        self.full_name = ""
        self.verbose = False
        self.envelope = SubmittedEnvelope()


def parse(words: list[str]) -> SendmailOptions:
    """Return the options. Raises Exit with code 64, and names the option."""
    options = SendmailOptions()
    recipients = options.envelope.recipients
    rest = iter(words)
    for word in rest:
        if word in ("--help", "--version"):
            options.mode = word[2:]
        elif word == "--":
            recipients.extend(rest)
        elif word[:1] == "-" and len(word) > 1:
            _option(options, word, rest)
        else:
            recipients.append(word)
    return options


def _option(options: SendmailOptions, word: str, rest: Iterator[str]) -> None:
    for place, letter in enumerate(word[1:], 1):
        if letter in _WITH_VALUE:
            value = word[place + 1 :]
            if not value and letter not in _WITH_ATTACHED_VALUE:
                value = next(rest, None)  # type: ignore[assignment]
                if value is None:
                    raise Exit(USAGE, f"option -{letter} needs a value")
            _valued(options, letter, value)
            return
        if letter == "t":
            options.from_header = True
        elif letter == "i":
            options.dot_ends = False
        elif letter == "v":
            options.verbose = True
        elif letter not in "nmsGUTe":  # without effect: programs give them as to other servers
            word = word if word[:2] == "--" else f"-{letter}"
            raise Exit(USAGE, f"unknown option {word}; `sendmail --help` lists them")


def _valued(options: SendmailOptions, letter: str, value: str) -> None:
    envelope = options.envelope
    if letter in "fr":
        options.sender = value.strip()
    elif letter == "F":
        options.full_name = value
    elif letter == "b":
        if value not in _MODES:
            offered = ", ".join(f"-b{mode}" for mode in _MODES)
            raise Exit(USAGE, f"mode -b{value} is not offered; there are {offered}")
        options.mode = _MODES[value]
    elif letter == "q":
        options.mode = "flush"
    elif letter == "o":
        if value.startswith("i"):
            options.dot_ends = False
    elif letter == "B":
        envelope.body = _choose("B", value, _BODIES)
    elif letter == "R":
        envelope.ret = _choose("R", value, _RET)
    elif letter == "N":
        envelope.notify = _notify(value)
    elif letter == "V":
        envelope.envid = "".join(
            char if _XTEXT.fullmatch(char) else f"+{ord(char):02X}" for char in value[:100]
        )


def _choose(letter: str, value: str, words: dict[str, str]) -> str:
    if value.upper() not in words:
        raise Exit(USAGE, f"-{letter} {value}: expected {' or '.join(words)}")
    return words[value.upper()]


def _notify(value: str) -> str:
    words = value.upper().split(",")
    if words != ["NEVER"] and not _NOTIFY.issuperset(words):
        raise Exit(USAGE, f"-N {value}: expected never, or a list of success, failure and delay")
    return ",".join(words)
