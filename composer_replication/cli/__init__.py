"""The `composer` command."""

from __future__ import annotations

from composer_replication.cli.main import app, main

__all__ = ["app", "main"]
