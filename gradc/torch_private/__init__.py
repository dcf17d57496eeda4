"""Every use of a private name of torch, by what it is about, and every change that gradc makes in torch.

If torch changes one of these, this room is what to mend. Imports nothing of gradc but errors.
"""

from gradc.torch_private import version  # noqa: F401  first: it refuses another torch
