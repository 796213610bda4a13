"""The process in which data-juicer's executors run: `python -m composer_replication.replaysim.worker FOLDER`.

Reads `FOLDER/request.json` and writes `FOLDER/verdicts.json`. Executors are handed a row's number and one text, in Parquet:
other columns would come back with their keys filled up, and in JSON a text that looks like a date would come back as one.

An executor tells which rows are left, and not which operator dropped a row. That is asked of the operators themselves, so a row
that none of them drops is a row the executor has lost, and an error.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from composer_replication.replaysim.backend import Pass, plan
from composer_replication.replaysim.data_juicer import DataJuicerBackend
from composer_replication.replaysim.recipe import DEDUPLICATOR, Operator
from composer_replication.sandbox.backends.linux import die_with_parent
from composer_replication.types.errors import BackendError

_ROW = "row"


class Worker:
    """One call of `ExecutorBackend.verdicts`.

    Args:
        ray_address: of a cluster, `local` for a private one; None for `DefaultExecutor`.
    """

    def __init__(self, folder: Path, operators: Sequence[Operator], ray_address: str | None) -> None:
        self._folder = folder
        self._operators = operators
        self._ray_address = ray_address
        self._data_juicer = DataJuicerBackend()
        self._parquet: Any = importlib.import_module("pyarrow.parquet")
        self._arrow: Any = importlib.import_module("pyarrow")
        self._passes = 0

    def verdicts(self, columns: Mapping[str, Sequence[str]]) -> list[int | None]:
        """Stage after stage, on the rows that are left; in a stage the first operator of the recipe counts."""
        verdicts: list[int | None] = [None] * len(columns["chosen"])
        for stage in plan(self._operators):
            rows = [row for row, verdict in enumerate(verdicts) if verdict is None]
            for one in stage if rows else ():
                texts = [columns[one.field][row] for row in rows]
                for row, verdict in zip(rows, self._run(one, texts), strict=True):
                    if verdict is not None:
                        known = verdicts[row]
                        verdicts[row] = verdict if known is None else min(known, verdict)
        return verdicts

    def _run(self, one: Pass, texts: Sequence[str]) -> list[int | None]:
        """Return the verdicts of one pass on its texts."""
        folder = self._folder / f"pass_{self._passes}"
        self._passes += 1
        folder.mkdir()
        given = folder / "in.parquet"
        schema = self._arrow.schema([(_ROW, self._arrow.int64()), (one.field, self._arrow.string())])
        self._parquet.write_table(self._arrow.table([range(len(texts)), texts], schema=schema), given)
        operators = [self._operators[index] for index in one.operators]
        if operators[0].name == DEDUPLICATOR and self._ray_address is not None:
            left = self._first_of_each(operators[0], given)
        else:
            left = self._execute(folder, given, operators)
        dropped = [number for number in range(len(texts)) if number not in left]
        if operators[0].name == DEDUPLICATOR:
            gone = dict.fromkeys(dropped, one.operators[0])
            return [gone.get(number) for number in range(len(texts))]
        column = [texts[number] for number in dropped]
        blamed = self._data_juicer.verdicts(operators, {"chosen": column, "rejected": column})
        verdicts: list[int | None] = [None] * len(texts)
        for number, index in zip(dropped, blamed, strict=True):
            if index is None:
                raise BackendError(f"the executor lost a row that no operator drops: {one.field} {texts[number][:80]!r}")
            verdicts[number] = one.operators[index]
        return verdicts

    def _execute(self, folder: Path, given: Path, operators: Sequence[Operator]) -> set[int]:
        """Return the numbers of the rows that data-juicer's executor keeps."""
        result = folder / "out.parquet"
        recipe = {
            "project_name": "replaysim",
            "dataset_path": str(given),
            "export_path": str(result),
            "work_dir": str(folder / "work"),
            "np": 1,
            "skip_op_error": False,
            "use_cache": False,
            "open_monitor": False,
            "keep_stats_in_res_ds": False,
            "text_keys": operators[0].text_key,
            "process": [{operator.name: {"text_key": operator.text_key, **operator.parameters}} for operator in operators],
        }
        if self._ray_address is not None:
            recipe |= {"executor_type": "ray", "ray_address": self._ray_address}
        path = folder / "recipe.yaml"
        path.write_text(json.dumps(recipe), encoding="utf-8")  # YAML contains JSON
        cfg = importlib.import_module("data_juicer.config").init_configs(["--config", str(path)])
        module, name = (
            ("ray_executor", "RayExecutor") if self._ray_address is not None else ("default_executor", "DefaultExecutor")
        )
        executor = getattr(importlib.import_module(f"data_juicer.core.executor.{module}"), name)
        executor(cfg).run()
        return self._rows(result)

    def _rows(self, result: Path) -> set[int]:
        """Read an executor's output: a file, on Ray a folder of files, with other columns too; nothing when no row is left."""
        files = [path for path in (result.rglob("*.parquet") if result.is_dir() else [result]) if path.stat().st_size > 0]
        return {number for path in files for number in self._parquet.read_table(path, columns=[_ROW])[_ROW].to_pylist()}

    def _first_of_each(self, operator: Operator, given: Path) -> set[int]:
        """Keep the first of each text. Ray computes the fingerprints; its own deduplicator would keep whichever comes first
        there."""
        ray: Any = importlib.import_module("ray")
        ray_data: Any = importlib.import_module("ray.data")
        ray.init(self._ray_address, ignore_reinit_error=True)
        fingerprint = self._data_juicer.hash_key
        table = ray_data.read_parquet(str(given)).map(self._data_juicer.make(operator).compute_hash)
        first: dict[str, int] = {}
        for row in table.select_columns([_ROW, fingerprint]).iter_rows():
            known = first.setdefault(row[fingerprint], row[_ROW])
            first[row[fingerprint]] = min(known, row[_ROW])
        return set(first.values())


def main() -> None:
    """Run the request of the folder named on the command line."""
    die_with_parent()
    folder = Path(sys.argv[1])
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    operators = [Operator(**operator) for operator in request["operators"]]
    verdicts = Worker(folder, operators, request["ray"]).verdicts(request["columns"])
    if request["ray"] is not None:
        importlib.import_module("ray").shutdown()
    (folder / "verdicts.json").write_text(json.dumps(verdicts), encoding="utf-8")


if __name__ == "__main__":
    main()
