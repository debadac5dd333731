"""Foreign text, made fit for one line of a terminal, a log or a record.

Party ids, tensor names, file names and column names come from strangers. Printed raw they could
move the cursor, forge a line about another party, or fill the disk.
"""

from __future__ import annotations

from hashlib import blake2b

LONGEST = 80  # characters of one name


def shown(text: object, longest: int = LONGEST) -> str:
    r"""Return text as one printable line of at most ``longest`` characters.

    What does not print is written as an escape. Of a longer text the two ends are kept, and between
    them four bytes of a hash, so that two names that differ still look different.

    >>> shown("layer.0.weight")
    'layer.0.weight'
    >>> shown("eve\n\x1b[2Jann: all is well")
    'eve\\n\\x1b[2Jann: all is well'
    >>> shown("w" * 1_000_000, longest=24)
    'wwwwww…(24e99723)…wwwwww'
    """
    raw = text if isinstance(text, str) else str(text)
    line = _escaped(raw if len(raw) <= longest else raw[:longest])
    if len(raw) <= longest and len(line) <= longest:
        return line
    mark = f"…({blake2b(raw.encode(errors='surrogatepass'), digest_size=4).hexdigest()})…"
    room = max(longest - len(mark), 0)
    tail = _escaped(raw[-longest:])
    return line[: room - room // 2] + mark + tail[len(tail) - room // 2 :]


def told(error: BaseException, longest: int = LONGEST) -> str:
    """Return what an error says, in one line; its type, where that is all."""
    try:
        said = shown(error, longest)
    except Exception:  # a stranger's error may fail to say
        said = ""
    name = shown(type(error).__name__)
    return f"{name}: {said}" if said else name


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
