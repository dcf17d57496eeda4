"""The recipes are about libraries that `make test` does without: where these are not installed, `make world` runs them."""

import importlib.util

LIBRARIES = ("accelerate", "lightning", "stable_baselines3", "torchrl", "transformers")
collect_ignore = [] if all(map(importlib.util.find_spec, LIBRARIES)) else ["test_recipes.py"]
