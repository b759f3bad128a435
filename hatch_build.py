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
        if wanted not in ("0", "1", "require"):
            self.app.abort(f"COMETMQ_NATIVE is 0, 1 (as when unset) or require, not {wanted!r}")
        root = Path(self.root)
        folder = root / "core" if version == "editable" else Path(self._scratch.name)
        try:
            built = _build(root / SOURCE, folder, Path(self._scratch.name), wanted != "0")
        except Exception as error:  # of a compiler: no two fail alike
            takes = "it takes a C compiler and Python's headers; pip -v shows what they said"
            said = f"{MODULE} can't be built here ({takes}): {error}"
            if wanted == "require":
                self.app.abort(f"COMETMQ_NATIVE=require, but {said}")
            self.app.display_warning(f"{said}. Without it all is plain Python")
            return
        if built and version != "editable":
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["force_include"][str(built)] = str(built.relative_to(folder))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The wheel is written."""
        self._scratch.cleanup()


def _build(source: Path, folder: Path, scratch: Path, wanted: bool) -> Path | None:
    """The built module, below `folder`; None if it is only to be gone there."""
    crc = zlib.crc32(source.read_bytes())
    flags = ["-O2", "-g0", f"-DSOURCE_CRC={crc}u"]
    extension = Extension(MODULE, [str(source)], extra_compile_args=flags)
    command = build_ext(Distribution({"ext_modules": [extension]}))
    command.build_lib, command.build_temp = str(folder), str(scratch / "objects")
    command.ensure_finalized()
    built = Path(command.get_ext_fullpath(MODULE))
    if built.exists():  # Else it is loaded where no other is built, or taken for it by its age.
        built.unlink()
    if not wanted:
        return None
    command.run()
    if not built.is_file():
        raise FileNotFoundError(f"the compiler wrote no {built.name}")
    return built
