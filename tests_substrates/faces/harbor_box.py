"""A Harbor environment out of bubblewrap: `harbor run --env harbor_box:BoxEnvironment` needs no Docker.

Of the Dockerfile it does what those of exported tasks say: the context's `repo` becomes /app. The interpreter is this one. Every
command runs in a root of its own with /usr, that interpreter, the folders given to this environment, and no network at all.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities

LINKS = (("usr/bin", "/bin"), ("usr/lib", "/lib"), ("usr/lib64", "/lib64"), ("usr/sbin", "/sbin"))


class BoxEnvironment(BaseEnvironment):
    @staticmethod
    def type():
        return "box"

    @property
    def capabilities(self):
        return EnvironmentCapabilities(disable_internet=True)

    def _validate_definition(self):
        assert (self.environment_dir / "Dockerfile").is_file()

    async def start(self, force_build):
        del force_build
        self.root = Path(tempfile.mkdtemp(prefix="harbor-box-"))
        for folder in ("logs/verifier", "logs/agent", "logs/artifacts", "tmp", "tests", "solution"):
            (self.root / folder).mkdir(parents=True)
        shutil.copytree(self.environment_dir / "repo", self.root / "app")

    async def stop(self, delete):
        del delete
        shutil.rmtree(self.root)

    def _inside(self, path):
        return self.root / str(path).lstrip("/")

    async def upload_file(self, source_path, target_path):
        self._inside(target_path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source_path, self._inside(target_path))

    async def upload_dir(self, source_dir, target_dir):
        shutil.copytree(source_dir, self._inside(target_dir), dirs_exist_ok=True)

    async def download_file(self, source_path, target_path):
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self._inside(source_path), target_path)

    async def download_dir(self, source_dir, target_dir):
        shutil.copytree(self._inside(source_dir), target_dir, dirs_exist_ok=True)

    async def exec(self, command, cwd=None, env=None, timeout_sec=None, user=None):
        del timeout_sec, user
        argv = [str(word) for word in (*self._box(cwd or "/app", env or {}), "bash", "-c", command)]
        process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
        out, err = await process.communicate()
        return ExecResult(stdout=out.decode(), stderr=err.decode(), return_code=process.returncode)

    def _box(self, cwd, env):
        return [
            *("bwrap", "--unshare-all", "--die-with-parent", "--clearenv", "--proc", "/proc", "--dev", "/dev"),
            *("--setenv", "PATH", f"{sys.prefix}/bin:/usr/bin", "--setenv", "HOME", "/tmp", "--ro-bind", "/usr", "/usr"),
            *(word for name, value in env.items() for word in ("--setenv", name, value)),
            *(word for target, link in LINKS for word in ("--symlink", target, link)),
            *(word for path in sorted(self.root.iterdir()) for word in ("--bind", path, f"/{path.name}")),
            *(word for path in sorted({sys.prefix, sys.base_prefix}) for word in ("--ro-bind", path, path)),
            *("--chdir", cwd),
        ]
