"""What generated programs import: the libraries whose use is tried, and nothing of gradc."""

from __future__ import annotations

import bisect
import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import heapq
import itertools
import json
import logging
import math
import operator
import random
import re
import string
import sys
import types
import typing
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

__all__ = [
    "F",
    "bisect",
    "collections",
    "contextlib",
    "copy",
    "dataclasses",
    "enum",
    "functools",
    "heapq",
    "itertools",
    "json",
    "logging",
    "math",
    "nn",
    "np",
    "operator",
    "random",
    "re",
    "string",
    "sys",
    "torch",
    "types",
    "typing",
    "warnings",
]
