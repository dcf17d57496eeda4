"""Compiled Autograd: capture what really happens at ``loss.backward()``, and replay it. The public names; see ``api``."""

from gradc.compiled_autograd.api import disable, enable, enable_by_default, last_graph, recordings, reset

__all__ = ["disable", "enable", "enable_by_default", "last_graph", "recordings", "reset"]
