"""A small stand-in for `clearml-agent execute --full-monitoring --id TASK`, where a test needs many and the stock one is slow.

It makes the calls that the stock one makes, in its order, as recorded with clearml-agent 3.0.3, runs the task's script with
this Python, looks for an abort, and exits with 0 whatever became of the task, or with the code of its program where
CLEARML_AGENT_PROPAGATE_EXITCODE says so. Variables: QUICK_AGENT_DELAY, seconds before it does anything, as a slow container start;
QUICK_AGENT_LINGER, seconds that it lives on after it has said how the task ended, 1 where the task failed;
QUICK_AGENT_BLIND, set where it does not look for an abort.
"""

import argparse
import base64
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request


class Server:
    def __init__(self):
        path = os.environ.get("CLEARML_CONFIG_FILE") or os.path.expanduser("~/clearml.conf")
        text = open(path).read() if os.path.exists(path) else ""

        def setting(variable, name):
            found = re.search(name + r'"?\s*[:=]\s*"?([^"\s,}]+)', text)
            return os.environ.get(variable) or (found and found.group(1))

        self.url = setting("CLEARML_API_HOST", "api_server")
        keys = [
            setting("CLEARML_API_ACCESS_KEY", "access_key"),
            setting("CLEARML_API_SECRET_KEY", "secret_key"),
        ]
        self.authorization = "Basic " + base64.b64encode(":".join(keys).encode()).decode()
        self.authorization = "Bearer " + self.call("auth.login", {})["token"]

    def call(self, endpoint, body, kind="application/json"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {
            "Authorization": self.authorization,
            "Content-Type": kind,
            "X-ClearML-Worker": "quick",
            "X-ClearML-Agent": "quick-agent",
        }
        request = urllib.request.Request(f"{self.url}/{endpoint}", data, headers, method="POST")
        for attempt in range(200):
            try:
                with urllib.request.urlopen(request) as answer:
                    return json.load(answer)["data"]
            except urllib.error.HTTPError as error:
                if error.code < 500 and error.code != 429:
                    raise
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.05)
        raise SystemExit(f"{endpoint}: no answer")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["execute"])
    parser.add_argument("--full-monitoring", action="store_true")
    parser.add_argument("--id", required=True)
    task = parser.parse_known_args()[0].id
    time.sleep(float(os.environ.get("QUICK_AGENT_DELAY", "0")))
    worker = os.environ.get("CLEARML_WORKER_ID", "quick:0")
    server = Server()
    script = server.call("tasks.get_by_id", {"task": task})["task"]["script"]["diff"]

    def report():
        now = int(time.time() * 1000)
        body = {"worker": worker, "task": task, "is_daemon": False, "timestamp": now}
        server.call("workers.status_report", body)

    def change(endpoint, reason, **more):
        body = {"task": task, "status_reason": reason, "status_message": f"Changed by quick-agent {worker}"}
        server.call(endpoint, {**body, **more})

    report()
    server.call("tasks.dequeue", {"task": task, "new_status": "in_progress"})
    for reason in ["starting execution soon", "worker started execution", "worker starting task execution"]:
        change("tasks.started", reason, force=True)
    print(f"Running task id [{task}]:", flush=True)
    child = subprocess.Popen(
        [sys.executable, "-u", "-c", script],
        env={**os.environ, "CLEARML_TASK_ID": task},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    server.call("tasks.ping", {"task": task})
    look = {"id": [task], "only_fields": ["status", "status_message"], "search_hidden": True}
    aborted = changed = False
    while child.poll() is None:
        if os.environ.get("QUICK_AGENT_BLIND"):
            time.sleep(0.1)
            continue
        found = server.call("tasks.get_all", look)["tasks"]
        aborted = bool(found) and found[0]["status"] == "in_progress" and "stopping" in found[0]["status_message"]
        changed = not found or found[0]["status"] != "in_progress"
        if aborted or changed:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            break
        time.sleep(0.1)
    said = child.stdout.read().decode()
    print(said, end="", flush=True)
    if not changed:
        if aborted:
            said += "Process aborted by user\n"
        line = {"type": "log", "level": "DEBUG", "task": task, "worker": worker, "msg": said or "\n"}
        server.call("events.add_batch", json.dumps(line).encode(), "application/json-lines")
        if aborted:
            change("tasks.stopped", "user abort", force=False)
        elif child.returncode == 0:
            change("tasks.completed", "worker execution done", force=False)
        else:
            change("tasks.failed", f"worker execution exit code {child.returncode}", force=False)
    # As recorded: a second passes between `tasks.failed` and the process's end.
    failed = not aborted and not changed and child.returncode != 0
    time.sleep(float(os.environ.get("QUICK_AGENT_LINGER", "1" if failed else "0")))
    report_end = {"worker": worker, "queues": []}
    try:
        server.call("workers.unregister", report_end)
    except urllib.error.HTTPError:
        pass  # Somebody has done it.
    if os.environ.get("CLEARML_AGENT_PROPAGATE_EXITCODE") == "1":
        sys.exit(child.returncode)


if __name__ == "__main__":
    main()
