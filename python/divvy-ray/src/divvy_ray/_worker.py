"""Start of a Python worker of Ray: ``python …/divvy_ray/_worker.py …/default_worker.py ARGUMENTS``.

Ray starts this file by its path, because the worker's environment (``pip``, ``conda``, ``uv``) may lack the package.
It loads the package from its folder, adds the hooks to Ray, and becomes Ray's worker.
"""

import importlib.util
import os
import runpy
import sys


def _load() -> None:
    """Makes this folder the package ``divvy_ray``, without its neighbours."""
    here = os.path.dirname(os.path.abspath(__file__))
    name = "divvy_ray"
    spec = importlib.util.spec_from_file_location(
        name, os.path.join(here, "__init__.py"), submodule_search_locations=[here]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {here}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def main() -> None:
    del sys.argv[0]
    # As `python default_worker.py` has it.
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    _load()
    from divvy_ray import _hooks

    _hooks.install()
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
