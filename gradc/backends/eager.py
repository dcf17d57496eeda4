"""Backend "eager": each Program is run by the Python interpreter. The reference: slow, and right by construction."""

from gradc.executor.core.interpret import lower

__all__ = ["lower"]
