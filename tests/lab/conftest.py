import threading
from collections.abc import Iterator

import pytest

from mirror import LocalMirror


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalMirror]:
    monkeypatch.setenv("no_proxy", "*")
    server = LocalMirror()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()
