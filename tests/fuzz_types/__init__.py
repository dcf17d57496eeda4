"""A differential fuzzer of Python's own types: what they do in a function that is compiled."""
