"""The executor that a run file names."""

from __future__ import annotations

from typing import Any

from composer_replication.config.executor import ExecutorConfig
from composer_replication.diloco import serverless
from composer_replication.diloco.serverless.base import ServerlessExecutor


def open_executor(options: ExecutorConfig) -> ServerlessExecutor:
    """Create the executor; nothing is started.

    Raises:
        MissingExtraError: the vendor's client is not installed.
        ConfigError: the image names none.
    """
    given: dict[str, Any] = {
        name: value
        for name in type(options).model_fields
        if any(options.type in rule.choices for rule in options.readers(name)) and (value := getattr(options, name)) is not None
    }
    match options.type:
        case "local":
            return serverless.LocalProcessExecutor()
        case "modal":
            return serverless.ModalExecutor(**given)
        case "hf":
            return serverless.HFJobsExecutor(**given)
        case "sky":
            return serverless.SkyExecutor(**given | ({"image": None} if options.image == "" else {}))
