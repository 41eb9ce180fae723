"""pyhocon, as the installed clearml-agent carries it, for the tests of Divvy's own reader.

Each line of the input is a JSON list of a command and its arguments; each line of the output is its JSON answer:
  ["init", TO]          the file that `clearml-agent init` writes goes to TO
  ["clearml-init", TO]  the file that the SDK's `clearml-init` writes goes to TO
  ["templates"]         the configuration files of both packages
  ["read", FILE]        {"value": ...} or {"error": "..."}
The wizards are asked for no connection: a server would have to answer them.
"""

import contextlib
import json
import os
import signal
import sys

from clearml_agent.external import pyhocon
from clearml_agent.external.pyhocon.config_tree import NoneValue

HOME = os.path.expanduser("~")


def plain(value):
    if isinstance(value, dict):
        return {str(key).strip('"'): plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return None if isinstance(value, NoneValue) else value


class Endless(BaseException):
    """pyhocon goes round in circles over some values that mean themselves."""


def ring(*_):
    raise Endless("pyhocon does not end")


def read(path):
    # CPU time: a busy machine slows pyhocon, but does not make it endless.
    signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, 2)
    try:
        return {"value": plain(pyhocon.ConfigFactory.parse_file(path).as_plain_ordered_dict())}
    except (Exception, Endless) as error:
        return {"error": "%s: %s" % (type(error).__name__, error)}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def wizard(module, answers, main, to):
    lines = iter(answers)
    module.input = lambda *_: next(lines)
    module.verify_credentials = lambda *_: True
    with contextlib.redirect_stdout(sys.stderr):
        main()
    os.rename(os.path.join(HOME, "clearml.conf"), to)
    return {}


# What the server's web page gives to be copied, and then: all as proposed.
PASTED = [
    "api {",
    "  web_server: http://clearml.example:8080",
    "  api_server: http://clearml.example:8008",
    "  files_server: http://clearml.example:8081",
    "  credentials {",
    '    "access_key" = "4CCE55"',
    '    "secret_key" = "s3cr3t"',
    "  }",
    "}",
]


def agent_init(to):
    from clearml_agent.commands import config

    # Web, API and files as proposed; the server for outputs; user and token for git; two indexes of packages.
    answers = ["", "", "", "S", "octo", "t0ken", "https://pypi.example/simple", "http://10.0.0.1:8080/simple", ""]
    return wizard(config, PASTED + answers, config.main, to)


def sdk_init(to):
    from clearml.cli.config import __main__ as config

    sys.argv = ["clearml-init"]
    return wizard(config, PASTED + [""] * 5, config.main, to)


def templates():
    found = []
    for package in ("clearml_agent", "clearml"):
        root = os.path.dirname(__import__(package).__file__)
        for folder, _, names in os.walk(root):
            found += [os.path.join(folder, name) for name in names if name.endswith(".conf")]
    return found


COMMANDS = {"init": agent_init, "clearml-init": sdk_init, "templates": templates, "read": read}

for line in sys.stdin:
    command, *arguments = json.loads(line)
    print(json.dumps(COMMANDS[command](*arguments), default=str), flush=True)
