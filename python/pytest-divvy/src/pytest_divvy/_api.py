"""Calls of the daemon's HTTP API over its socket."""

import http.client
import json
import socket
import time
from typing import Any, Callable, Optional

#: Seconds that one answer may take. A client of Divvy gives up after 10 s without an answer.
_ANSWER_S = 15.0

#: Seconds that a call waits for a daemon that is away: one that systemd starts again is back within seconds.
_AWAY_S = 30.0

#: Between two attempts. A daemon starts within tenths of a second.
_PAUSE_S = 0.05

#: The largest answer that is read. The job of one worker has a few kilobytes.
_MOST_BYTES = 16 << 20


class ApiError(Exception):
    """The daemon refused a call, or does not answer."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(f"{message} ({hint})" if hint else message)
        self.code = code
        self.message = message


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("divvy", timeout=_ANSWER_S)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Daemon:
    """The daemon behind a socket. Each call has a connection of its own, so a process may fork between two calls."""

    def __init__(
        self,
        path: str,
        away_s: float = _AWAY_S,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.path = path
        self.away_s = away_s
        #: Whether a call has waited without an answer: the next ones then wait no more.
        self.is_away = False
        self._now = now
        self._sleep = sleep

    def node(self) -> dict[str, Any]:
        return _only(self.call("GET", "/v1/node"))

    def gpus(self) -> list[dict[str, Any]]:
        return self.call("GET", "/v1/gpus")

    def job(self, job: str) -> dict[str, Any]:
        return _only(self.call("GET", f"/v1/jobs/{job}"))

    def resize(self, job: str, memory: int, compute: Optional[str] = None) -> dict[str, Any]:
        """Gives the job this memory on its GPU, and measures its peak from now on."""
        body: dict[str, Any] = {"amount": {"kind": "memory", "bytes": memory}}
        if compute is not None:
            body["compute"] = compute
        return _only(self.call("POST", f"/v1/jobs/{job}/resize", body))

    def refusals(self, job: str) -> list[dict[str, Any]]:
        return list(_only(self.call("GET", f"/v1/jobs/{job}/oom")).get("records") or [])

    def call(self, method: str, path: str, body: Optional[dict[str, Any]] = None) -> list[dict[str, Any]]:
        """The items of the answer. Every call that this package makes may be repeated, so it is while the daemon is away.

        :raises ApiError: with the daemon's reason, or `no_daemon`.
        """
        begin = self._now()
        while True:
            try:
                status, answer = self._once(method, path, body)
                self.is_away = False
                break
            except (OSError, http.client.HTTPException) as error:
                if self.is_away or self._now() - begin >= self.away_s:
                    self.is_away = True
                    raise ApiError("no_daemon", f"no daemon answers on {self.path}: {error}") from None
                self._sleep(_PAUSE_S)
        try:
            document = json.loads(answer)
            if status < 400:
                return [item for item in document["items"] if isinstance(item, dict)]
            error = document["error"]
            refusal = ApiError(str(error["code"]), str(error["message"]), str(error.get("hint") or ""))
        except (KeyError, TypeError, ValueError):
            refusal = ApiError("internal", f"cannot read the daemon's answer to {method} {path} (status {status})")
        raise refusal

    def _once(self, method: str, path: str, body: Optional[dict[str, Any]]) -> tuple[int, bytes]:
        connection = _Connection(self.path)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"content-type": "application/json"} if text else {})
            response = connection.getresponse()
            return response.status, response.read(_MOST_BYTES)
        finally:
            connection.close()


def _only(items: list[dict[str, Any]]) -> dict[str, Any]:
    if len(items) != 1:
        raise ApiError("internal", f"the daemon answered with {len(items)} items instead of one")
    return items[0]
