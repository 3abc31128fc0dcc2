"""A private view of the machine for a peer: its users exist, and folders lie elsewhere.

In a mount namespace, files of the bench cover /etc/passwd and similar files for the peer's
processes alone. The namespace ends with the last of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FIRST_ID = 64100  # Debian's range for ids that no package takes


@dataclass(frozen=True)
class Room:
    """The users a peer finds, and the folders it sees at other places."""

    directory: Path
    users: dict[str, int]
    groups: dict[str, int]
    folders: Mapping[str, Path]

    def command(self, command: Sequence[str | Path]) -> list[str]:
        """Return the command that runs a command in the room, under the same process id."""
        covers = {
            "/etc/passwd": self.directory / "passwd",
            "/etc/group": self.directory / "group",
            **self.folders,
        }
        script = "".join(f"mount --bind '{path}' '{at}' && " for at, path in covers.items())
        return [
            *("unshare", "--mount", "--propagation", "private"),
            *("sh", "-c", f'{script}exec "$@"', "sh"),
            *(str(part) for part in command),
        ]


def furnish(
    directory: Path,
    users: Sequence[str],
    groups: Sequence[str] = (),
    folders: Mapping[str, Path] | None = None,
) -> Room:
    """Write the room's files: each user has a group of its name; further groups have no members."""
    ids = {name: FIRST_ID + at for at, name in enumerate([*users, *groups])}
    for kind, extra in (
        ("passwd", [f"{name}:x:{ids[name]}:{ids[name]}::/:/bin/false" for name in users]),
        ("group", [f"{name}:x:{number}:" for name, number in ids.items()]),
    ):
        lines = Path(f"/etc/{kind}").read_text().splitlines()
        kept = [line for line in lines if line.partition(":")[0] not in ids]
        (directory / kind).write_text("\n".join([*kept, *extra]) + "\n")
    return Room(directory, {name: ids[name] for name in users}, ids, folders or {})
