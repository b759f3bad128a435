"""Builds `cometmq.native._native` with the package, where there is a compiler; without one the
package is plain Python and does the same.

`COMETMQ_NATIVE=0` builds none, `COMETMQ_NATIVE=require` fails where it can't be built.
"""

from __future__ import annotations

import os
import tempfile
import zlib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext

MODULE = "cometmq.native._native"
SOURCE = Path("core", *MODULE.split(".")).with_suffix(".c")


class NativeHook(BuildHookInterface[Any]):
    """The hook that hatchling calls for wheels, editable ones among them."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build it: beside its source for an editable installation, else into the wheel."""
        self._scratch = tempfile.TemporaryDirectory()
        wanted = os.environ.get("COMETMQ_NATIVE", "1")
        if wanted == "0":
            return
        root = Path(self.root)
        folder = root / "core" if version == "editable" else Path(self._scratch.name)
        try:
            built = _build(root / SOURCE, folder, Path(self._scratch.name, "objects"))
        except Exception as error:  # of a compiler: no two fail alike
            if wanted == "require":
                raise
            self.app.display_warning(f"without {MODULE}, which can't be built here: {error}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        if version != "editable":
            build_data["force_include"][str(built)] = str(built.relative_to(folder))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The wheel is written."""
        self._scratch.cleanup()


def _build(source: Path, folder: Path, objects: Path) -> Path:
    """The built module, below `folder`."""
    crc = zlib.crc32(source.read_bytes())
    flags = ["-O2", "-g0", f"-DSOURCE_CRC={crc}u"]
    extension = Extension(MODULE, [str(source)], extra_compile_args=flags)
    command = build_ext(Distribution({"ext_modules": [extension]}))
    command.build_lib, command.build_temp = str(folder), str(objects)
    command.force = True  # a build that is newer than its source may still be of another one
    command.ensure_finalized()
    command.run()
    return Path(command.get_ext_fullpath(MODULE))
