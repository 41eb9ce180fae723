"""A part of a GPU for each notebook server of JupyterHub: see docs/jupyterhub.md.

Append this file to `jupyterhub_config.py`.
"""

#: What users can choose, and the amount for `divvy run -g`.
SIZES = {"an eighth": "0.125", "a quarter": "0.25", "half": "0.5"}
DEFAULT = "a quarter"


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
    slice = ["divvy", "run", "--no-wait", "-g", SIZES[name], "--idle-timeout", "2h", "--idle-action", "cancel"]
    spawner.cmd = [*slice, "--", "jupyterhub-singleuser"]


c = get_config()  # noqa: F821 - JupyterHub defines it
c.Spawner.options_form = form
c.Spawner.options_from_form = read
c.Spawner.pre_spawn_hook = in_slice
