"""Serves the page of a growing record, read-only, on this machine, to those who know the address.

The page asks every second for what was added since it last read. The address holds a random token;
requests without it all get the same 404. A connection lasts at most `DEADLINE` seconds, and there
are at most `MOST`: a further one replaces the oldest, so that a client that never finishes its
request cannot block others.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import sys
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any
from urllib.parse import parse_qs

from consilience.errors import RecordFileError
from consilience.record import lines
from consilience.report.page import fill
from consilience.text import shown

log = logging.getLogger(__name__)

DEADLINE = 30.0  # seconds for a request and its response
MOST = 64  # connections, and so threads


class Watch(ThreadingHTTPServer):
    """A web server for one record, which need not exist yet."""

    daemon_threads = True
    request_queue_size = MOST  # with a shorter queue, connecting could take a second

    def __init__(
        self, record: str | os.PathLike[str], host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self.record = Path(record)
        self.token = secrets.token_urlsafe(24)
        self._open: dict[Any, float] = {}  # connections, oldest first, and their deadlines
        self._lock = Lock()
        self.added(0)  # reports at once if the file is not a record
        super().__init__((host, port), _Handler)

    @property
    def url(self) -> str:
        """The page's address, with the token."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}/{self.token}/"

    def page(self) -> str:
        """Return the page with all that is in the record."""
        found, place = lines(self.record) if self.record.exists() else ([], 0)
        return fill(self.record.name, found, live=place)

    def added(self, place: int) -> str:
        """Return what was added since, as JSON; null if the record was begun anew."""
        if not self.record.exists():
            return json.dumps({"rounds": [], "next": 0} if place == 0 else None)
        if self.record.stat().st_size < place:
            return json.dumps(None)
        found, end = lines(self.record, place)
        return json.dumps({"rounds": found, "next": end})

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; if there are too many, drop the oldest."""
        with self._lock:
            self._open[request] = monotonic() + DEADLINE
            while len(self._open) > MOST:
                self._cut(next(iter(self._open)))
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that was answered."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Drop connections that last too long."""
        super().service_actions()
        with self._lock:
            for request in [one for one, end in self._open.items() if end < monotonic()]:
                self._cut(request)

    def _cut(self, request: Any) -> None:
        del self._open[request]
        with suppress(OSError):  # its thread then reads an end, and closes it
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error in one line; a client that went away is none."""
        error = sys.exception()
        if not isinstance(error, OSError):
            log.error("a question could not be answered: %s", shown(repr(error), 500))


class _Handler(BaseHTTPRequestHandler):
    server: Watch

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        token, _, name = path.lstrip("/").partition("/")
        known = secrets.compare_digest(token.encode(), self.server.token.encode())
        try:
            if known and name == "":
                self._answer(self.server.page(), "text/html")
            elif known and name == "rounds":
                place = int(parse_qs(query)["from"][0])
                self._answer(self.server.added(max(0, place)), "application/json")
            else:
                self.send_error(404)
        except (KeyError, ValueError) as error:
            damaged = isinstance(error, RecordFileError)
            self.send_error(500 if damaged else 400, explain=shown(error, 500) if damaged else None)

    def _answer(self, text: str, kind: str) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing: the page asks every second."""
