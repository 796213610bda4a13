"""Tasks in other people's formats: Harbor directories, SWE-bench rows and Dockerfiles out, Harbor directories in."""

from __future__ import annotations

from composer_replication.tasks.exchange.harbor_export import export_harbor
from composer_replication.tasks.exchange.harbor_import import import_harbor
from composer_replication.tasks.exchange.images import export_images
from composer_replication.tasks.exchange.swebench_export import export_swebench

__all__ = ["export_harbor", "export_images", "export_swebench", "import_harbor"]
