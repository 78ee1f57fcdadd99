"""`vivavoce bench audio`: does the sound break, and is any lost, beside a busy program.

A real device pair plays a tone through the audio process while this process is idle or runs two busy Python
threads, the two arms in turn; a third process keeps the tone coming. What is lost the audio process counts
itself; what is broken shows in the tone: as the sound server's monitor recorded it, or else as it came back to the
microphone.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from app.bench.document import Benchmark, Metrics, Row
from app.bench.tone import continuity, tone
from app.config.schema import Config
from app.errors import AgentError
from app.histogram import quantiles
from audio.block import Float32Array
from audio.child import end_child
from audio.control import ControlWords
from audio.io.device import PortAudioSpec, StreamFormat
from audio.io.priority import raise_priority
from audio.io.process import AudioProcess
from audio.io.records import MIC_CAPACITY, PLAYBACK_CAPACITY, block_dtype, playback_dtype
from audio.io.segments import attach
from audio.io.stream_child import DeviceStopped, StreamRefs
from audio.ring import RecordRing

ARMS = ("idle", "busy")
BUSY_THREADS = 2
_SEGMENT_S = 30.0
"""The arms take turns this often, so that both see the same machine."""
_TAIL_S = 1.2
"""After the tone: what is still on its way, and the last second of the loss count."""
_POLL_S = 0.1
_PLAYER_SLEEP_S = 0.02
_PLAYER_FIFO_PRIORITY = 4
"""Below ear and audio process."""
_RECORDER_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Size:
    """How long, and where the loudspeaker is recorded."""

    seconds: float = 30.0
    """Of tone in each arm."""
    monitor: str = ""
    """The sound server's source to record with `parecord`; empty: the microphone must hear the loudspeaker."""


def measure(config: Config, *, seed: int, size: Size) -> list[Row]:
    """One row a segment; the arms take turns.

    Raises:
        DeviceError, AudioError: the devices of the configuration cannot be opened.
        AgentError: the monitor cannot be recorded, or this machine is too busy to measure anything.
    """
    spec = PortAudioSpec(config.audio.input, config.audio.output, config.audio.rate_hz or None)
    segments = max(1, math.ceil(size.seconds / _SEGMENT_S))
    rows: list[Row] = []
    for number in range(segments):
        for arm in ARMS:
            rows.append({"segment": number, **_segment(spec, arm, size.seconds / segments, size.monitor)})
    return rows


def _segment(spec: PortAudioSpec, arm: str, seconds: float, monitor: str) -> dict[str, Any]:
    process = AudioProcess(spec)
    stream = process.start()
    try:
        with _recorded(monitor, stream.rate_hz) as recording, _burning(BUSY_THREADS if arm == "busy" else 0):
            near, times_ns, stopped = _play(process, stream, round(seconds * 100))
            lost_frames = int(process.control.lost_frames)
            counts = {"late_blocks": int(process.control.late_blocks), "underruns": int(process.control.underruns)}
    finally:
        process.stop()
    heard = continuity(np.fromfile(recording, np.float32) if recording else near, stream.rate_hz)
    if recording:
        recording.unlink()
    return {
        "arm": arm,
        "scheduling": process.priority,
        "rate_hz": stream.rate_hz,
        "heard_by": "monitor" if monitor else "microphone",
        "seconds": seconds,
        "tone_s": round(heard.tone_s, 2),
        "breaks": heard.breaks,
        "stopped": stopped,
        "lost_ms": round(lost_frames * 1000 / stream.rate_hz, 2),
        **counts,
        "gap_ms": _gaps_ms(times_ns),
    }


def _play(process: AudioProcess, stream: StreamFormat, blocks: int) -> tuple[Float32Array, np.ndarray[Any, Any], str]:
    """Have `blocks` of tone played; the microphone (N,) meanwhile, the time of every callback, why it stopped early."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    arguments = (sender, process.refs, stream, blocks, os.getpid())
    player = context.Process(target=_player_main, args=arguments, name="vivavoce-player", daemon=True)
    player.start()
    sender.close()
    reason = ""
    try:
        while not receiver.poll(_POLL_S):
            for happened in process.poll_events():
                if isinstance(happened, DeviceStopped):
                    reason = happened.reason
                    process.control.shutdown = 1  # tells the player too
        near, times_ns, unread = receiver.recv()
    except EOFError:
        raise AgentError("the process that plays the tone died", fix="Measure again") from None
    finally:
        receiver.close()
        end_child(player, 1.0)
    if unread:
        raise AgentError(f"{unread} blocks were not read in time", fix="Measure again on a quieter machine")
    return near, times_ns, reason


def _player_main(sender: Connection, refs: StreamRefs, stream: StreamFormat, blocks: int, parent_pid: int) -> None:
    """Child: keeps the playback ring full and reads the microphone's. Not the busy process's task: an empty ring
    would break the tone, and it is the audio process that is judged."""
    raise_priority(_PLAYER_FIFO_PRIORITY)
    frames = stream.block_frames
    reader = RecordRing(block_dtype(frames), MIC_CAPACITY, attach(refs.mic)).reader()
    ring = RecordRing(playback_dtype(frames), PLAYBACK_CAPACITY, attach(refs.playback))
    control = ControlWords(attach(refs.control))
    control.generation = 1
    near: list[Any] = []
    times_ns: list[Any] = []
    fed = 0
    until_s = math.inf
    while time.monotonic() < until_s and not control.shutdown and os.getppid() == parent_pid:
        while fed < blocks and ring.free():
            slot = ring.slot()
            slot["samples"] = tone(fed * frames, frames, stream.rate_hz)
            slot["generation"], slot["end_frames"], slot["last"] = 1, (fed + 1) * frames, fed == blocks - 1
            ring.commit()
            fed += 1
        if fed == blocks and until_s == math.inf:
            until_s = time.monotonic() + PLAYBACK_CAPACITY / 100 + _TAIL_S
        records = reader.read()
        near.append(records["near"].ravel())
        times_ns.append(records["time_ns"])
        time.sleep(_PLAYER_SLEEP_S)
    sender.send((np.concatenate(near), np.concatenate(times_ns), reader.lost))


def _gaps_ms(times_ns: np.ndarray[Any, Any]) -> dict[str, float]:
    """Time between callbacks."""
    gaps = quantiles(np.diff(times_ns) / 1e6)
    return {"p50": round(gaps.p50, 2), "p99": round(gaps.p99, 2), "max": round(gaps.maximum, 2)}


@contextmanager
def _burning(threads: int) -> Iterator[None]:
    """Pure-Python threads that never let go of the interpreter by themselves."""
    is_over = threading.Event()

    def burn() -> None:
        number = 0
        while not is_over.is_set():
            for _ in range(10_000):
                number = (number * 31 + 7) % 1_000_003

    workers = [threading.Thread(target=burn, name=f"busy-{index}", daemon=True) for index in range(threads)]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        is_over.set()
        for worker in workers:
            worker.join()


@contextmanager
def _recorded(monitor: str, rate_hz: int) -> Iterator[Path | None]:
    """Records a source of the sound server meanwhile: raw float32, mono. Without one: None."""
    if not monitor:
        yield None
        return
    parecord = shutil.which("parecord")
    if parecord is None:
        raise AgentError("--monitor needs parecord", fix="Install pulseaudio-utils")
    with tempfile.NamedTemporaryFile(prefix="vivavoce-tone-", suffix=".raw", delete=False) as file:
        path = Path(file.name)
    options = [f"--device={monitor}", f"--rate={rate_hz}", "--channels=1", "--format=float32le", "--raw"]
    recorder = subprocess.Popen([parecord, *options, str(path)], stderr=subprocess.PIPE)
    try:
        _wait_for_sound(recorder, path, monitor)
        yield path
    finally:
        recorder.terminate()
        recorder.communicate(timeout=_RECORDER_LIMIT_S)


def _wait_for_sound(recorder: subprocess.Popen[bytes], path: Path, monitor: str) -> None:
    """Until the first samples are in the file."""
    until_s = time.monotonic() + _RECORDER_LIMIT_S
    while not path.stat().st_size:
        if recorder.poll() is not None or time.monotonic() > until_s:
            raise AgentError(f"the source {monitor!r} cannot be recorded", fix="See: pactl list short sources")
        time.sleep(0.02)


def metrics(rows: Sequence[Row]) -> Metrics:
    """Per arm: seconds of tone, what was lost, late, empty and broken, and the time between callbacks.

    `ARM_breaks` is null where nobody heard the tone; `fifo_share` is the share of segments with SCHED_FIFO.
    """
    found: dict[str, float] = {
        "fifo_share": sum(row["scheduling"].startswith("SCHED_FIFO") for row in rows) / len(rows)
    }
    for arm in ARMS:
        mine = [row for row in rows if row["arm"] == arm]
        is_heard = all(row["breaks"] is not None for row in mine)
        found |= {
            f"{arm}_s": sum(row["seconds"] for row in mine),
            f"{arm}_lost_ms": sum(row["lost_ms"] for row in mine),
            f"{arm}_late_blocks": float(sum(row["late_blocks"] for row in mine)),
            f"{arm}_underruns": float(sum(row["underruns"] for row in mine)),
            f"{arm}_breaks": float(sum(row["breaks"] for row in mine)) if is_heard else math.nan,
            f"{arm}_stops": float(sum(bool(row["stopped"]) for row in mine)),
            f"{arm}_tone_missing_s": sum(max(0.0, row["seconds"] - row["tone_s"]) for row in mine),
            f"{arm}_gap_p99_ms": max(row["gap_ms"]["p99"] for row in mine),
            f"{arm}_gap_max_ms": max(row["gap_ms"]["max"] for row in mine),
        }
    return found


def remarks(rows: Sequence[Row]) -> list[str]:
    """What a person must know to read the figures."""
    lines = []
    granted = sorted({row["scheduling"] for row in rows})
    if any(not scheduling.startswith("SCHED_FIFO") for scheduling in granted):
        lines.append(
            f"the audio process got {', '.join(granted)} instead of SCHED_FIFO: sound may break under load; "
            "vivavoce doctor names the fix"
        )
    lines += sorted({f"a stream ended early: {row['stopped']}" for row in rows if row["stopped"]})
    if any(row["breaks"] is None for row in rows):
        lines.append("the microphone does not hear the tone, so breaks are not counted: give --monitor SOURCE")
    return lines


BENCHMARK = Benchmark("audio", measure, metrics)
