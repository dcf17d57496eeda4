"""Steps and zero_grad of optimizers that run natively, with the bits of torch's own."""

from gradc.optim.eager_updates import EagerUpdates
from gradc.optim.model_updates import forget_modules, update_natively
from gradc.optim.native_step import compile_optimizer, native_step_of
from gradc.optim.zero_grad import native_zero_grad, quick_zero_grad

__all__ = [
    "EagerUpdates",
    "compile_optimizer",
    "forget_modules",
    "native_step_of",
    "native_zero_grad",
    "quick_zero_grad",
    "update_natively",
]
