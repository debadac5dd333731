"""Takes Flower's replies one by one, and writes each to a file before the next one comes.

Flower's grids collect all replies of a round in memory and return them together. `OneByOne` asks
them for one reply at a time.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from consilience.engines.files.spool import Spool
from consilience.errors import UpdateError
from consilience.integrations import flower_replies as replied

_PAUSE = 3.0  # seconds between two requests for replies, as in Flower's own grid


class SpooledReplies:
    """The replies of a round, with their arrays in files."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._spool = Spool(folder)
        self._updates: dict[int, Any] = {}  # by the id() of the message

    def lend(self, model: ArrayRecord) -> Any:
        """Put the model that was sent into a file, and empty its record while replies come."""
        stored = self._spool.put(replied.tensors(model))
        model.clear()
        gc.collect()  # Flower leaves reference cycles of what was sent
        return stored

    def take(self, replies: Iterable[Message]) -> Iterator[Message]:
        """Yield the replies; the arrays of each are moved to a file."""
        for reply in replies:
            if reply.has_content():
                try:
                    self._updates[id(reply)] = self._spool.put(replied.update(reply))
                except UpdateError as error:
                    self._updates[id(reply)] = error
                for name in reply.content.array_records:
                    reply.content[name] = ArrayRecord()
            yield reply

    def update(self, message: Message) -> Any:
        """Return a party's update, with its tensors in a file; raise if it cannot be used."""
        found = self._updates.get(id(message))
        if found is None:  # an error, or empty
            return replied.update(message)
        if isinstance(found, UpdateError):
            raise found
        return found

    def clear(self) -> None:
        """Remove the files of the round."""
        self._updates = {}
        self._spool.clear()


class OneByOne(Grid):
    """A grid that passes on each reply as it comes, and keeps none."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def set_run(self, run: Any) -> None:
        """Set the run."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """The run."""
        return self._grid.run

    def create_message(self, *args: Any, **more: Any) -> Message:
        """Return a message, as the grid makes it."""
        return self._grid.create_message(*args, **more)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[Any]:
        """Return the nodes."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to some messages that have come so far."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages, and return their replies as they come."""
        waiting = [name for name in self._grid.push_messages(messages) if name]
        return self._replies(waiting, timeout)

    def _replies(self, waiting: list[str], timeout: float | None) -> Iterator[Message]:
        end = float("inf") if timeout is None else time.monotonic() + timeout
        while waiting:
            before = len(waiting)
            for name in list(waiting):
                for reply in self._grid.pull_messages([name]):
                    if name in waiting:
                        waiting.remove(name)
                    yield reply
            # Replies that came in time count, even if they had to wait for others to be taken.
            if len(waiting) == before:
                if time.monotonic() >= end:
                    return
                time.sleep(_PAUSE)
