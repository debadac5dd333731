"""A web server on this machine that can be told to misbehave."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class LocalMirror(ThreadingHTTPServer):
    """Serves `contents`; closes the connection after `cut` bytes of an answer, `cuts` times."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.contents: dict[str, bytes] = {}
        self.cut, self.cuts = 0, 0
        self.ranges = True
        self.requests: list[tuple[str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/data"


class Handler(BaseHTTPRequestHandler):
    server: LocalMirror

    def do_GET(self) -> None:
        mirror, wanted = self.server, self.headers.get("Range")
        mirror.requests.append((self.path, wanted))
        name = self.path.removeprefix("/data/")
        if name not in mirror.contents:
            self.send_error(404)
            return
        data = mirror.contents[name]
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        if start >= len(data) and wanted:
            self.send_error(416)
            return
        resumed = bool(wanted) and mirror.ranges
        body = data[start:] if resumed else data
        self.send_response(206 if resumed else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if mirror.cuts > 0:
            mirror.cuts -= 1
            body = body[: mirror.cut]
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass
