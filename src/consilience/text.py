"""Foreign text made safe for one line of a terminal, log or record; and numbers for people.

Party ids, tensor names, file names and column names come from strangers. Printed raw they could
move the cursor, forge a line about another party, or fill the disk.
"""

from __future__ import annotations

import math
from hashlib import blake2b

LONGEST = 80  # characters of one name
_DIGITS = 3, 6  # significant digits of a number with an interval, at least and at most


def shown(text: object, longest: int = LONGEST) -> str:
    r"""Return text as one printable line of at most ``longest`` characters.

    Unprintable characters are escaped. Of a longer text both ends are kept, with four bytes of a
    hash between them, so that different names still look different.

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
    """Return an error's message in one line, or its type if there is no message."""
    try:
        said = shown(error, longest)
    except Exception:  # str() of a foreign error may itself fail
        said = ""
    name = shown(type(error).__name__)
    return f"{name}: {said}" if said else name


def measured(value: float, interval: tuple[float, float] | None = None) -> str:
    """Return a number, and its interval if it has one, with as many digits as the interval allows.

    >>> measured(1.2034)
    '1.2'
    >>> measured(1.2034, (1.1312, 1.2801))
    '1.20 (1.13–1.28)'
    >>> measured(0.09921, (0.09657, 0.10192))
    '0.099 (0.097–0.102)'
    """
    if interval is None:
        return f"{value:.3g}"
    low, high = interval
    least, most = _DIGITS
    worth = math.ceil(math.log10(high / (high - low))) + 1 if high > low else most
    digits = min(max(worth, least), most)
    places = digits - 1 - math.floor(math.log10(high))
    # Fixed point, unless it would hide digits of the lower end or show many zeros.
    form = f".{max(places, 0)}f" if high < 10 * low and 1e-3 <= high < 1e5 else f".{digits}g"
    return f"{value:{form}} ({low:{form}}–{high:{form}})"


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
