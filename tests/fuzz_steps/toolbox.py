"""What generated training steps import, and nothing of gradc."""

from __future__ import annotations

import copy
import functools
import io

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

__all__ = ["AveragedModel", "F", "checkpoint", "copy", "functools", "io", "lr_scheduler", "nn", "parametrizations", "torch"]
