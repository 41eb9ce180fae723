"""Import hook: prepares the ClearML agent for fractions when Python imports it.

Python imports this file at its start in every program of the environment, because of the ``.pth`` file next to it.
So the file only registers a hook for one module name, and imports no further modules.
"""

import sys

WORKER = "clearml_agent.commands.worker"


class _Finder:
    """Finds that one module in the usual way, and adds a step after its execution."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != WORKER:
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
                from clearml_agent_fractional_gpu._stock import prepare

                prepare(module)
            except Exception as error:  # The agent works without fractions; report why.
                print(
                    f"clearml-agent-fractional-gpu: fractions do not work with this version of clearml-agent: {error}",
                    file=sys.stderr,
                )

        loader.exec_module = exec_module
        return spec


if WORKER not in sys.modules and _Finder not in sys.meta_path:
    sys.meta_path.insert(0, _Finder)
