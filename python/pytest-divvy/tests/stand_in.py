"""A stand-in for the daemon: a socket that answers calls for one job, as the daemon of divvy 0.1.0 does."""

import json
import os
import socketserver
import tempfile
import threading
import unittest
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Callable, Optional

GIB = 1 << 30


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


class StandIn:
    """`answer` gets method, path and body of each call, and returns status and document."""

    def __init__(self, path: Path, answer: Callable[[str, str, Any], tuple[int, Any]]) -> None:
        self.path = path
        self.calls: list[tuple[str, str, Any]] = []
        calls = self.calls

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # noqa: N802
                length = int(self.headers.get("content-length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                calls.append((self.command, self.path, body))
                status, document = answer(self.command, self.path, body)
                text = document if isinstance(document, bytes) else json.dumps(document).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                if text:
                    self.wfile.write(text)

            do_POST = do_GET  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

            def address_string(self) -> str:
                return ""

        self.server = _Server(str(path), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        os.unlink(self.path)


def items(*items: Any) -> tuple[int, Any]:
    return 200, {"schema": "divvy/v1", "items": list(items)}


def error(status: int, code: str, message: str = "no", hint: Optional[str] = None) -> tuple[int, Any]:
    return status, {"error": {"code": code, "message": message, "hint": hint}}


class WithFolder(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def serve(self, answer: Callable[[str, str, Any], tuple[int, Any]]) -> StandIn:
        stand_in = StandIn(self.folder / "divvy.sock", answer)
        self.addCleanup(stand_in.close)
        return stand_in
