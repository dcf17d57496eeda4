"""torch's logging: ``torch._logging.set_logs`` and ``TORCH_LOGS`` know a log by the names that are registered here."""

from __future__ import annotations

import dataclasses
import logging

from torch._logging import getArtifactLogger
from torch._logging._internal import log_registry, register_artifact, register_log

from gradc.torch_private.patches import Patch


@dataclasses.dataclass(frozen=True)
class LogNames:
    """Names that torch's logging gets to know, for logs of their own below ``package``.

    Names that torch has itself (``recompiles``, ``compiled_autograd``) are shared: ``set_logs(recompiles=True)`` shows torch's
    and ours.
    """

    package: str
    names: tuple[str, ...]

    def missing(self) -> str:
        """Nothing: the names are gradc's own."""
        return ""

    def apply(self, patch: str) -> None:
        register_log(self.package, self.package)  # gives the artifacts below it torch's handler and format
        for name in self.names:
            if name not in log_registry.artifact_names:
                register_artifact(name, f"{self.package}: {name}", off_by_default=True)
            getArtifactLogger(self.package, name)

    def undo(self, patch: str) -> None:
        del log_registry.log_alias_to_log_qnames[self.package]
        for name in self.names:
            log_registry.artifact_log_qnames.discard(_logger_name(self.package, name))
            if log_registry.artifact_descriptions[name] == f"{self.package}: {name}":
                del log_registry.artifact_descriptions[name]
                log_registry.artifact_names.discard(name)
                log_registry.off_by_default_artifact_names.discard(name)

    def is_applied(self, patch: str) -> bool:
        return self.package in log_registry.log_alias_to_log_qnames

    def __str__(self) -> str:
        return f"torch._logging's names: {', '.join(self.names)}"


def log_names(package: str, names: tuple[str, ...]) -> Patch:
    return Patch(
        "log_names",
        "torch._logging.set_logs(modules={...}) must know gradc's logs. Added at the first use of gradc; no name is changed.",
        (LogNames(package, names),),
    )


def artifact_logger(package: str, name: str) -> logging.Logger:
    """The logger of one of the names: ``gradc.__graphs``."""
    return logging.getLogger(_logger_name(package, name))


def _logger_name(package: str, name: str) -> str:
    return f"{package}.__{name}"
