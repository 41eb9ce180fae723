"""JupyterHub with examples/jupyterhub_config.py: `python jupyterhub_scene.py FOLDER CONFIG DIVVY PROXY`.

Prints what a notebook sees, and how its job ends, as one JSON object. `DIVVY_HOME` names the daemon.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

FOLDER, CONFIG, DIVVY, PROXY = sys.argv[1:5]
TOKEN = "t" * 32
HEADERS = {"Authorization": f"token {TOKEN}"}

#: What the notebook runs.
CELL = """
import ctypes
cuda, total = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t()
cuda.cuInit(0); cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0)
cuda.cuCtxCreate_v2(ctypes.byref(ctypes.c_void_p()), 0, 0)
taken = 0
while cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(1 << 28)) == 0:
    taken += 1 << 28
print(total.value, taken)
"""


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def jobs():
    done = subprocess.run([DIVVY, "ps", "-a", "-o", "json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["items"]


def configuration(ports):
    scopes = ["admin:users", "admin:servers", "access:servers"]
    return f"""
exec(compile(open({CONFIG!r}).read(), {CONFIG!r}, "exec"))
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.spawner_class = "simple"
c.JupyterHub.bind_url = "http://127.0.0.1:{ports[0]}"
c.JupyterHub.hub_port = {ports[1]}
c.JupyterHub.db_url = "sqlite:///:memory:"
c.JupyterHub.cookie_secret_file = {FOLDER + "/secret"!r}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{ports[2]}"
c.ConfigurableHTTPProxy.command = [{PROXY!r}]
c.ConfigurableHTTPProxy.pid_file = {FOLDER + "/proxy.pid"!r}
c.SimpleLocalProcessSpawner.home_dir_template = {FOLDER + "/{username}"!r}
c.Spawner.env_keep = ["PATH", "DIVVY_HOME"]
c.Spawner.args = ["--allow-root"]
c.Spawner.start_timeout = 120
c.Spawner.http_timeout = 120
c.JupyterHub.services = [{{"name": "scene", "api_token": {TOKEN!r}}}]
c.JupyterHub.load_roles = [{{"name": "scene", "scopes": {scopes!r}, "services": ["scene"]}}]
"""


class Hub:
    def __init__(self, port):
        self.base = f"http://127.0.0.1:{port}"
        self.client = AsyncHTTPClient()

    async def call(self, method, path, body=None):
        request = HTTPRequest(
            self.base + path,
            method=method,
            headers=HEADERS,
            body=json.dumps(body) if body is not None else None,
            allow_nonstandard_methods=True,
            request_timeout=120,
        )
        answer = await self.client.fetch(request)
        return json.loads(answer.body) if answer.body else None

    async def until(self, what, look, seconds=120):
        end = time.monotonic() + seconds
        while True:
            try:
                found = await look()
            except (OSError, HTTPClientError):
                found = None
            if found:
                return found
            if time.monotonic() > end:
                raise SystemExit(f"not within {seconds} s: {what}")
            await asyncio.sleep(0.2)

    async def start(self, user, gpu):
        await self.call("POST", f"/hub/api/users/{user}")
        await self.call("POST", f"/hub/api/users/{user}/server", {"gpu": gpu})
        await self.until(f"the server of {user}", lambda: self.ready(user))

    async def ready(self, user):
        servers = (await self.call("GET", f"/hub/api/users/{user}")).get("servers", {})
        return bool(servers) and servers[""]["ready"]

    async def gone(self, user):
        return not (await self.call("GET", f"/hub/api/users/{user}")).get("servers")

    async def run(self, user, code):
        """Runs a cell in a new kernel; what it printed."""
        kernel = (await self.call("POST", f"/user/{user}/api/kernels", {}))["id"]
        url = f"{self.base.replace('http', 'ws')}/user/{user}/api/kernels/{kernel}/channels"
        channel = await websocket_connect(HTTPRequest(url, headers=HEADERS))
        header = {"msg_id": "1", "msg_type": "execute_request", "username": "", "session": "s", "version": "5.3"}
        content = {"code": code, "silent": False}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
        await channel.write_message(json.dumps(message))
        printed = ""
        while True:
            got = json.loads(await asyncio.wait_for(channel.read_message(), 120))
            if got["parent_header"].get("msg_id") != "1":
                continue
            if got["msg_type"] == "stream":
                printed += got["content"]["text"]
            if got["msg_type"] == "error":
                raise SystemExit("\n".join(got["content"]["traceback"]))
            if got["msg_type"] == "execute_reply":
                channel.close()
                return printed


async def refused(hub, user, gpu):
    """The text with which the hub refuses a server."""
    await hub.call("POST", f"/hub/api/users/{user}")
    try:
        await hub.call("POST", f"/hub/api/users/{user}/server", {"gpu": gpu})
    except HTTPClientError as error:
        return error.response.body.decode()
    return None


async def scene(hub):
    await hub.until("the hub answers", lambda: hub.call("GET", "/hub/api/"))
    await hub.start("ana", "a quarter")
    total, taken = map(int, (await hub.run("ana", CELL)).split())
    running = [job for job in jobs() if job["state"] == "running"]
    await hub.call("DELETE", "/hub/api/users/ana/server")
    await hub.until("the server has stopped", lambda: hub.gone("ana"))

    async def ended():
        return all(job["state"] == "ended" for job in jobs())

    await hub.until("its job has ended", ended)
    stopped = jobs()[-1]
    wrong = await refused(hub, "eve", "a dozen")
    # The API takes any JSON from a user.
    listed = await refused(hub, "fay", ["half"])
    # The GPU is taken by another job.
    filler = subprocess.Popen([DIVVY, "run", "-g", "0.9", "--", "sleep", "600"])

    async def taken_up():
        return any(job["state"] == "running" for job in jobs())

    await hub.until("the other job runs", taken_up)
    full = await refused(hub, "bob", "half")
    filler.terminate()
    filler.wait()
    return {
        "total": total,
        "taken": taken,
        "running": [[job["name"].rsplit("-", 1)[0], job["slices"][0]["share"]] for job in running],
        "stopped": [stopped["state"], stopped["end_reason"]],
        "refused": [wrong is not None, "GPU ['half'] is not one of" in (listed or ""), full is not None],
        "log": [line for line in Path(FOLDER, "hub.log").read_text().splitlines() if "error: " in line.lower()],
    }


def main():
    ports = [free_port() for _ in range(3)]
    config = Path(FOLDER, "config.py")
    config.write_text(configuration(ports))
    log = open(Path(FOLDER, "hub.log"), "w")
    words = [sys.executable, "-m", "jupyterhub", "-f", str(config)]
    path = f"{os.path.dirname(sys.executable)}:{os.path.dirname(DIVVY)}:{os.environ['PATH']}"
    task = str(Path(CONFIG).with_name("divvy-task"))
    around = {**os.environ, "PATH": path, "CONFIGPROXY_AUTH_TOKEN": TOKEN, "DIVVY_TASK": task}
    hub = subprocess.Popen(words, cwd=FOLDER, stdout=log, stderr=subprocess.STDOUT, env=around)
    try:
        print(json.dumps(asyncio.run(scene(Hub(ports[0])))))
    except BaseException:
        print(Path(FOLDER, "hub.log").read_text()[-8000:], file=sys.stderr)
        raise
    finally:
        hub.terminate()
        hub.wait(30)


main()
