"""Adds the plugin to Ray's runtime environment agent."""

import functools
from typing import Any


def prepare(module: Any) -> None:
    """Patches ``ray._private.runtime_env.plugin``, so that every plugin manager has the plugin ``divvy``.

    :raises AttributeError: when the module differs from the known versions.
    """
    manager = module.RuntimeEnvPluginManager
    begin = manager.__init__
    _ = module.RuntimeEnvPlugin, manager.add_plugin

    @functools.wraps(begin)
    def with_divvy(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        # Imported here: the plugin's base class is in the module that is being executed.
        from .plugin import DivvyPlugin

        if DivvyPlugin.name not in self.plugins:
            self.add_plugin(DivvyPlugin())

    manager.__init__ = with_divvy
