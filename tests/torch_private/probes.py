"""For each of gradc's patches a test that fails without it, by its node id: see ``tests.patches``."""

PROBES: dict[str, tuple[str, ...]] = {}
WITHOUT: dict[str, str] = {}
