"""Waits for the ClearML agent to be imported, and has it prepared for fractions then.

Python imports this file at its start, by the ``.pth`` file beside it, in every program of the environment. So it does nothing
but remember one name, and imports nothing that Python has not imported already.
"""

import sys

WORKER = "clearml_agent.commands.worker"


class _Finder:
    """Finds that one module as it would be found without, and adds a step to its execution."""

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
            except Exception as error:  # The agent works without, and is told.
                print(
                    f"clearml-agent-fractional-gpu: this clearml-agent is not prepared for fractions: {error}",
                    file=sys.stderr,
                )

        loader.exec_module = exec_module
        return spec


if WORKER not in sys.modules and _Finder not in sys.meta_path:
    sys.meta_path.insert(0, _Finder)
