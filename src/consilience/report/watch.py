"""Serve the page of a record that still grows: to this machine, to who knows the address, to read.

The page asks every second for what was added since the place it has read to. The address holds a
random token; whatever is asked without it gets the same 404.
"""

from __future__ import annotations

import json
import os
import secrets
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from consilience.errors import RecordFileError
from consilience.record import lines
from consilience.report.page import fill


class Watch(ThreadingHTTPServer):
    """A web server for one record, which need not exist yet."""

    daemon_threads = True

    def __init__(
        self, record: str | os.PathLike[str], host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self.record = Path(record)
        self.token = secrets.token_urlsafe(24)
        self.added(0)  # a file that is no record is told before anybody looks
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
        """Return in JSON what was added since, or null for a record begun anew."""
        if not self.record.exists():
            return json.dumps({"rounds": [], "next": 0} if place == 0 else None)
        if self.record.stat().st_size < place:
            return json.dumps(None)
        found, end = lines(self.record, place)
        return json.dumps({"rounds": found, "next": end})


class _Handler(BaseHTTPRequestHandler):
    server: Watch

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        token, _, name = asked.path.lstrip("/").partition("/")
        known = secrets.compare_digest(token.encode(), self.server.token.encode())
        try:
            if known and name == "":
                self._answer(self.server.page(), "text/html")
            elif known and name == "rounds":
                place = int(parse_qs(asked.query)["from"][0])
                self._answer(self.server.added(max(0, place)), "application/json")
            else:
                self.send_error(404)
        except (KeyError, ValueError) as error:
            damaged = isinstance(error, RecordFileError)
            self.send_error(500 if damaged else 400, explain=str(error) if damaged else None)

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
        """Say nothing: the page asks every second."""
