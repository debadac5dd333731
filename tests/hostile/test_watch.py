"""The page's server against strangers who know its port, not its token."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.request import urlopen

import pytest

import consilience as cs
from consilience.report import watch
from consilience.report.watch import Watch


@pytest.fixture
def server(tmp_path: Path, monkeypatch) -> Iterator[Watch]:
    monkeypatch.setattr(watch, "DEADLINE", 0.5)
    file = tmp_path / "run.jsonl"
    cs.Record(file).append(None, note="here")
    with Watch(file) as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.05,))
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def connect(server: Watch) -> socket.socket:
    return socket.create_connection(server.server_address[:2], timeout=10)


def ask(server: Watch, request: bytes) -> bytes:
    with connect(server) as line:
        line.sendall(request)
        return b"".join(iter(lambda: line.recv(65536), b""))


def page(server: Watch) -> bytes:
    with urlopen(server.url, timeout=10) as answer:
        return answer.read()


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET http://[ HTTP/1.0",
        b"GET http://[/x HTTP/1.1",
        b"GET //[::1/ HTTP/1.0",
        b"GET /\xff\xfe HTTP/1.0",
        b"GET / HTTP/9.9.9",
        b"\x1b[2J\x00",
        b"GET /" + b"x" * 100_000 + b" HTTP/1.0",
    ],
)
def test_no_request_prints_a_traceback(server: Watch, request_line, capfd):
    answer = ask(server, request_line + b"\r\n\r\n")
    assert b" 200 " not in answer[:20]
    assert b"here" not in answer
    assert capfd.readouterr() == ("", "")
    assert b"here" in page(server)


def test_who_goes_away_early_is_no_news(server: Watch, capfd):
    for sent in (b"", b"GET", f"GET /{server.token}/ HTTP/1.0\r\n\r\n".encode()):
        line = connect(server)
        # Reset, not closed: what is being written then fails.
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        line.sendall(sent)
        line.close()
    assert b"here" in page(server)
    assert capfd.readouterr() == ("", "")


def test_half_requests_hold_few_threads_and_nobody_up(server: Watch):
    before = threading.active_count()
    lines = []
    try:
        for _ in range(3 * watch.MOST):
            lines.append(connect(server))
            lines[-1].sendall(b"GET /half")
            assert threading.active_count() - before <= watch.MOST + 10  # a few are ending
        assert b"here" in page(server)
        deadline = time.monotonic() + 10
        while threading.active_count() > before and time.monotonic() < deadline:
            for line in lines[-20:]:  # a drop now and then is no request either
                with suppress(OSError):
                    line.sendall(b"x")
            time.sleep(0.05)
        assert threading.active_count() == before
    finally:
        for line in lines:
            line.close()
    assert b"here" in page(server)


def test_too_many_cost_the_oldest_its_place_long_before_its_deadline(server: Watch, monkeypatch):
    monkeypatch.setattr(watch, "DEADLINE", 60.0)
    before = threading.active_count()
    with ExitStack() as lines:
        for _ in range(2 * watch.MOST):
            lines.enter_context(connect(server)).sendall(b"GET /half")
        assert b"here" in page(server)  # so all of them have been accepted
        deadline = time.monotonic() + 10
        while threading.active_count() - before > watch.MOST and time.monotonic() < deadline:
            time.sleep(0.05)
        assert threading.active_count() - before <= watch.MOST
