"""The room that runs Programs: in C++ (``lower``) or, slowly and as their reference, in Python (``interpret``)."""

from gradc.executor.core.native import Runner, is_plan, lower, lower_dispatched

__all__ = ["Runner", "is_plan", "lower", "lower_dispatched"]
