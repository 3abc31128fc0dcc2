"""Search and replace in octets, at a cost that no content of a peer can raise."""

from __future__ import annotations

from stringzilla import count, split

_SPARSE_GAP_OCTETS = 128  # from one hit to the next: above, StringZilla beats bytes.replace


def replace(data: bytes, old: bytes, new: bytes) -> bytes:
    """Return the data with `new` for every `old`, as `bytes.replace` does."""
    hits = count(data, old)
    if not hits:
        return data
    if hits * _SPARSE_GAP_OCTETS > len(data):
        return data.replace(old, new)
    joined: bytes = new.join(split(data, old))
    return joined
