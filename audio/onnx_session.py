"""ONNX Runtime with the settings that every small engine here needs: one thread, no spinning, CPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from audio.errors import ModelFileError, NoMemoryError, is_memory_short


def open_session(source: Path | bytes, *, model: str) -> Any:
    """An `onnxruntime.InferenceSession` on one thread, of a file or of a model in memory.

    One thread because two engines that spin on a machine with two cores slow each other down several
    times over; it also keeps the order of additions, and so the output bits, the same.

    Raises:
        ModelFileError: the file is missing, or ONNX Runtime cannot load it.
        NoMemoryError: the memory does not suffice.
    """
    onnxruntime = _onnxruntime()
    if isinstance(source, Path) and not source.is_file():
        raise ModelFileError(f"{model}: no file {source}", fix="Run `vivavoce models fetch`")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    try:
        content = str(source) if isinstance(source, Path) else source
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises its own classes straight below Exception
        name = source.name if isinstance(source, Path) else "it"
        if is_memory_short(error):
            raise NoMemoryError(f"not enough memory for {model}") from error
        raise ModelFileError(
            f"{model}: {name} is no model that ONNX Runtime can load ({type(error).__name__})",
            fix="Run `vivavoce models fetch` to replace it",
        ) from error


def _onnxruntime() -> Any:
    """The library, silenced: since 1.32 the Linux build keeps a device id and reports to its maker half a minute later.

    The variable must be set before the first import; nothing leaves this machine.
    """
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    return onnxruntime
