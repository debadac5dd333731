"""The command ``consilience``: Ctrl-C ends it with 130 from the first moment, whatever it imports.

This is no part of the package, since whoever imports any of that has imported numpy by then.
"""

import os
import signal
import sys
from contextlib import suppress


def main() -> None:
    """Run the command line."""
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not in the background
    if heeded:
        # Nothing has begun, so nothing is left behind. An exception might get lost in an import.
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from consilience.cli.commands import main as run

    try:
        if heeded:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:
        _cancelled()
    except SystemExit as end:
        if end.code == 130:
            _cancelled()
        raise


def _cancelled() -> None:
    """End with 130. After an interrupted eval() Python itself would end as if killed."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(130)


if __name__ == "__main__":
    main()
