"""Which build of the module in C is used, and what is said of one that is not."""

from __future__ import annotations

import sys
import zlib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

import pytest

from cometmq import native

MODULE = "cometmq.native._native"


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the module and its source are looked for."""
    monkeypatch.delenv("COMETMQ_NATIVE", raising=False)
    monkeypatch.delattr(native, "_native", raising=False)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    monkeypatch.setattr(native, "__path__", [str(tmp_path)])
    monkeypatch.setattr(native, "__file__", str(tmp_path / "__init__.py"))
    return tmp_path


@pytest.fixture
def build(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """One of the source `b"old"`."""
    module = ModuleType(MODULE)
    module.__dict__.update(SOURCE_CRC=zlib.crc32(b"old"), __file__="built.so")
    monkeypatch.setitem(sys.modules, MODULE, module)
    return module


def test_without_one_nothing_is_said(folder: Path, recwarn: pytest.WarningsRecorder) -> None:
    assert native._built() is None
    assert not recwarn


def test_one_of_another_python_is_none(folder: Path, recwarn: pytest.WarningsRecorder) -> None:
    (folder / "_native.cpython-35m-x86_64-linux-gnu.so").write_bytes(b"of another Python")
    assert native._built() is None
    assert not recwarn


def test_one_that_cant_be_loaded_is_named(folder: Path) -> None:
    broken = folder / f"_native{EXTENSION_SUFFIXES[0]}"
    broken.write_bytes(b"no shared object")
    with pytest.warns(RuntimeWarning, match=f"can't be loaded: {broken}.*install CometMQ again"):
        assert native._built() is None


def test_one_of_another_source_is_named(folder: Path, build: ModuleType) -> None:
    (folder / "_native.c").write_bytes(b"new")
    with pytest.warns(RuntimeWarning, match="was built from other sources: built.so"):
        assert native._built() is None


@pytest.mark.parametrize("beside", [True, False], ids=["checkout", "wheel"])
def test_one_of_the_source_beside_it_is_used(
    folder: Path, build: ModuleType, beside: bool, recwarn: pytest.WarningsRecorder
) -> None:
    if beside:
        (folder / "_native.c").write_bytes(b"old")
    assert native._built() is build
    assert not recwarn


def test_a_variable_keeps_it_from_being_looked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    (folder / f"_native{EXTENSION_SUFFIXES[0]}").write_bytes(b"no shared object")
    monkeypatch.setenv("COMETMQ_NATIVE", "0")
    assert native._built() is None
    assert not recwarn


@pytest.mark.parametrize("value", ["false", "no", ""])
def test_a_value_that_means_nothing_is_named(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("COMETMQ_NATIVE", value)
    with pytest.warns(RuntimeWarning, match=f"is 0, 1 .* or require; '{value}' is taken as 1"):
        assert native._built() is build


@pytest.mark.parametrize("value", ["1", "require"])
def test_the_values_that_ask_for_it_are_known(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder, value: str
) -> None:
    monkeypatch.setenv("COMETMQ_NATIVE", value)
    assert native._built() is build
    assert not recwarn
