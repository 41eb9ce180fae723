"""A part of a GPU for each notebook server of JupyterHub: see docs/jupyterhub.md.

Append this file to `jupyterhub_config.py`.
"""

import os
import pwd
import re
import secrets

from jupyterhub.spawner import SimpleLocalProcessSpawner

#: What users can choose, and the amount of a GPU.
SIZES = {"an eighth": "0.125", "a quarter": "0.25", "half": "0.5"}
DEFAULT = "a quarter"

#: Holds a slice for as long as the server's process lives, and becomes the server.
TASK = os.environ.get("DIVVY_TASK", "/usr/share/doc/divvy/examples/divvy-task")


def form(spawner):
    options = "".join(
        f"<option{' selected' if name == DEFAULT else ''}>{name}</option>" for name in SIZES
    )
    return f'<label for="gpu">GPU</label> <select name="gpu" class="form-control">{options}</select>'


def read(answers):
    return {"gpu": answers.get("gpu", [DEFAULT])[0]}


def in_slice(spawner):
    """Starts the server in a slice. The options come from the user, so only known ones pass."""
    name = spawner.user_options.get("gpu", DEFAULT)
    if not isinstance(name, str) or name not in SIZES:
        error = ValueError(f"GPU {name!r:.40} is not one of: {', '.join(SIZES)}")
        error.jupyterhub_message = str(error)
        raise error
    # A new name each time: the slice of the server before may still be on its way out.
    user = re.sub(r"[^A-Za-z0-9._-]", "-", spawner.user.name)
    task = [f"jupyter-{user:.40}-{secrets.token_hex(3)}", SIZES[name], "jupyterhub-singleuser"]
    if os.geteuid() == 0 and not isinstance(spawner, SimpleLocalProcessSpawner):
        # Root enters the slice and then becomes the user: the limiter lies in the driver's place, and no variable.
        account = pwd.getpwnam(spawner.user.name)
        task = ["-u", account.pw_name, *task]
        spawner.popen_kwargs = {"preexec_fn": None, "cwd": account.pw_dir}
    spawner.cmd = [TASK, *task]


c = get_config()  # noqa: F821 - JupyterHub defines it
c.Spawner.options_form = form
c.Spawner.options_from_form = read
c.Spawner.pre_spawn_hook = in_slice
