"""A user's hand on a ClearML server: reads `{"endpoint": …, "body": …}` lines, answers `{"data": …}` or `{"refused": …}`.

Arguments: the server's URL, the access key, the secret key.
"""

import json
import sys

import requests

url, access_key, secret_key = sys.argv[1:]
session = requests.Session()


def call(endpoint, body, **more):
    return session.post(f"{url}/{endpoint}", json=body, timeout=60, **more)


token = call("auth.login", {}, auth=(access_key, secret_key)).json()["data"]["token"]
session.headers["Authorization"] = f"Bearer {token}"
for line in sys.stdin:
    wish = json.loads(line)
    answer = call(wish["endpoint"], wish["body"]).json()
    if answer["meta"]["result_code"] == 200:
        print(json.dumps({"data": answer["data"]}), flush=True)
    else:
        print(json.dumps({"refused": answer["meta"]["result_msg"]}), flush=True)
