"""What the demo may be asked for. A leaf, so that the command line knows it without importing torch."""

from __future__ import annotations

from gradc.errors import ConfigError

BACKENDS = ("eager", "aot_eager", "inductor", "gradc")
MOST_EPOCHS_BY_DEFAULT = 20
MAX_EPOCHS = 200


def check_limits(epochs: int | None, backends: tuple[str, ...]) -> None:
    """
    Raises:
        ConfigError: for a number of epochs or a backend that cannot be used.
    """
    if epochs is not None and not 1 <= epochs <= MAX_EPOCHS:
        raise ConfigError(f"--epochs {epochs}: use a whole number from 1 to {MAX_EPOCHS}.")
    for backend in backends:
        if backend not in BACKENDS:
            raise ConfigError(f"--backend {backend}: unknown. Use one or more of: {', '.join(BACKENDS)}.")
