"""Optimizer steps that run natively, with the bits of torch's own: ``compile_optimizer``."""

from gradc.optim.native_step import compile_optimizer

__all__ = ["compile_optimizer"]
