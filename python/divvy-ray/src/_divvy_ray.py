"""Import hook: adds the plugin ``divvy`` to Ray's runtime environments when Python imports them.

Python imports this file at its start in every program of the environment, because of the ``.pth`` file next to it.
So the file only registers a hook for one module name, and imports no further modules. A variable such as
``RAY_RUNTIME_ENV_PLUGINS`` would be inherited by programs of other environments, which lack the plugin.
"""

import sys

PLUGINS = "ray._private.runtime_env.plugin"


class _Finder:
    """Finds that one module in the usual way, and adds a step after its execution."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != PLUGINS:
            return None
        sys.meta_path.remove(cls)
        from importlib.util import find_spec

        spec = find_spec(name)
        loader = getattr(spec, "loader", None)
        if not hasattr(loader, "exec_module"):
            return spec
        execute = loader.exec_module

        def exec_module(module):
            execute(module)
            try:
                from divvy_ray._register import prepare

                prepare(module)
            except Exception as error:  # Ray works without limits; report why.
                print(f"divvy-ray: Divvy does not work with this version of Ray: {error}", file=sys.stderr)

        loader.exec_module = exec_module
        return spec


if PLUGINS not in sys.modules and _Finder not in sys.meta_path:
    sys.meta_path.insert(0, _Finder)
