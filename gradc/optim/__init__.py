"""Optimizer steps that run natively, with the bits of torch's own: ``compile_optimizer``, ``native_step_of``."""

from gradc.optim.native_step import compile_optimizer, native_step_of

__all__ = ["compile_optimizer", "native_step_of"]
