"""The octets that wait in a socket."""

from __future__ import annotations

from fcntl import ioctl

_answer = bytearray(4)


def waiting(descriptor: int, question: int) -> bool:
    """Return whether octets wait in a socket, by the ioctl FIONREAD or TIOCOUTQ (tcp(7)).

    Without a descriptor (-1) the answer is no.
    """
    if descriptor < 0:
        return False
    try:
        ioctl(descriptor, question, _answer)
    except OSError:
        return False
    return any(_answer)
