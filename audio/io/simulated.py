"""A sound device without hardware: files and arrays in and out, a clock of its own, faults on demand.

Paced, it calls back from its own thread in real time. Unpaced, the caller steps it and block times are
simulated, so a session runs as fast as it can and to the same samples.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

import numpy as np
import numpy.typing as npt

from audio.block import Float32Array
from audio.clock import BLOCK_NS
from audio.errors import DeviceError
from audio.files import WavWriter
from audio.io.channels import mix_down, spread
from audio.io.device import (
    BlockCallback,
    Finished,
    ScriptSpec,
    SimulatedSpec,
    SpokenUtterance,
    StreamFormat,
    candidate_rates_hz,
    refused_every_rate,
)
from audio.io.drift_mapper import SplitStats
from audio.io.room import Room
from audio.io.scripted import RecordedUser, ScriptedUser, User

_NAME = "simulated device"
_STOP_LIMIT_S = 1.0


class OwnClock(Protocol):
    """A loudspeaker that asks for its blocks by its own clock."""

    next_ns: int
    """When it will ask next."""

    def begin(self, origin_ns: int, microphone_hz: int) -> None:
        """The device's time begins; a microphone of this rate will listen."""
        ...

    def ask(self, time_ns: int) -> None:
        """It asks now."""
        ...

    def heard(self, times_s: npt.NDArray[np.float64]) -> Float32Array:
        """What it played at these times (B,) since the beginning."""
        ...


class SimulatedDevice:
    """See `SimulatedSpec`, and `AudioDevice` for the order of calls.

    With a loudspeaker on a clock of its own it is the microphone only, and hears that loudspeaker in the room.
    """

    def __init__(self, spec: SimulatedSpec, loudspeaker: OwnClock | None = None) -> None:
        self._spec = spec
        self._loudspeaker = loudspeaker
        self._rate_hz = 0
        self._callback: BlockCallback | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._finished: Finished | None = None
        self._epoch_ns = spec.epoch_ns
        self._now_ns = 0
        self._kept: list[Float32Array] = []

    def open(self) -> StreamFormat:
        """See `AudioDevice`. Starts the stream's time and script anew."""
        spec = self._spec
        if self._is_gone(self._time_ns()):
            if not spec.is_paced:
                self._now_ns += BLOCK_NS  # an attempt takes a while, or simulated time would stand still
            raise DeviceError("the simulated device is not there", device=_NAME, fix="Wait until it is back")
        rates_hz = candidate_rates_hz(spec.rate_hz)
        accepted = [rate for rate in rates_hz if rate not in spec.refused_rates_hz]
        if not accepted:
            raise refused_every_rate(_NAME, rates_hz)
        self._rate_hz = accepted[0]
        frames = self._rate_hz // 100
        self._user: User
        if isinstance(spec.input, ScriptSpec):
            self._user = ScriptedUser(spec.input, self._rate_hz)
        else:
            self._user = RecordedUser(spec.input, self._rate_hz, spec.tail_s)
        self._room = None if spec.room is None else Room(spec.room, self._rate_hz, frames)
        self._random = np.random.default_rng(spec.seed)
        self._stalls = sorted((round(at_s * 100), round(duration_s * 100)) for at_s, duration_s in spec.stalls)
        self._block = 0  # of the device's own time, stalls included
        self._near = np.zeros(frames, np.float32)
        self._out = np.zeros(frames, np.float32)
        self._inputs = np.zeros((frames, spec.input_channels), np.float32)
        self._outputs = np.zeros((frames, spec.output_channels), np.float32)
        self._finished = None
        self._stopping.clear()
        return StreamFormat(self._rate_hz, frames, _NAME, _NAME, "simulated", spec.output_latency_ms)

    def start(self, callback: BlockCallback) -> None:
        """See `AudioDevice`; where the device is not paced, nothing happens before `step`."""
        if self._rate_hz == 0:
            raise RuntimeError("open() comes before start()")
        spec = self._spec
        self._callback = callback
        self._kept = []
        self._output_wav = WavWriter(spec.output_path, self._rate_hz) if spec.output_path else None
        self._record_wav = WavWriter(spec.record_path, self._rate_hz, channels=2) if spec.record_path else None
        self._origin_ns = self._time_ns()
        if self._epoch_ns is None:
            self._epoch_ns = self._origin_ns
        elif spec.is_paced:
            self._user.miss((self._origin_ns - self._epoch_ns) // BLOCK_NS * len(self._near))
        if self._loudspeaker is not None:
            self._loudspeaker.begin(self._origin_ns, self._rate_hz)
        if spec.is_paced:
            self._thread = threading.Thread(target=self._run, name="simulated-audio", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """See `AudioDevice`; also completes the WAV files."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_STOP_LIMIT_S)
            self._thread = None
        if self._callback is not None:
            self._callback = None
            for wav in (self._output_wav, self._record_wav):
                if wav is not None:
                    wav.close()

    def step(self, n_blocks: int = 1) -> int:
        """Run an unpaced device by up to `n_blocks` callbacks; how many there were before it finished."""
        if self._callback is None or self._spec.is_paced:
            raise RuntimeError("only an unpaced device that was started can be stepped")
        for done in range(n_blocks):
            self._pass_stall()
            due_ns = self._due_ns() + self._jitter_ns()
            self._let_ask(due_ns)
            self._now_ns = due_ns
            if not self._step():
                return done
        return n_blocks

    @property
    def active(self) -> bool:
        """See `AudioDevice`."""
        return self._callback is not None and self._finished is None

    @property
    def finished(self) -> Finished | None:
        """See `AudioDevice`."""
        return self._finished

    @property
    def output(self) -> Float32Array:
        """What left the loudspeaker since `start`, (N,) at the device's rate; needs `keep_output`."""
        return np.concatenate(self._kept) if self._kept else np.zeros(0, np.float32)

    @property
    def stats(self) -> SplitStats | None:
        """See `AudioDevice`: one clock."""
        return None

    def spoken(self) -> tuple[SpokenUtterance, ...]:
        """See `AudioDevice`."""
        return self._user.spoken()

    def _run(self) -> None:
        """Real time: every block at its own due time, so one late block does not delay the next."""
        while not self._stopping.is_set():
            self._pass_stall()
            due_ns = self._due_ns() + self._jitter_ns()
            try:
                if not (self._let_ask(due_ns) and self._wait_until(due_ns)):
                    return
                self._now_ns = time.monotonic_ns()
                if not self._step():
                    return
            except Exception as error:  # as a driver does: a callback that raises ends the stream
                self._finished = Finished(f"the audio callback failed: {error!r}", is_lost=True)
                raise

    def _step(self) -> bool:
        """One block; False where the device has finished instead."""
        if self._is_gone(self._now_ns):
            self._finished = Finished("the device disappeared", is_lost=True)
            return False
        if self._user.finished:
            self._finished = Finished("the input is over", is_lost=False)
            return False
        assert self._callback is not None
        near, out = self._near, self._out
        self._hear_loudspeaker()
        self._user.speak(near)
        if self._room is not None:
            self._room.add_echo(near)
        np.clip(near, -1.0, 1.0, out=near)
        self._inputs[:] = near[:, None]
        mix_down(self._inputs, near)
        self._callback(near, out, self._now_ns)
        self._block += 1
        if self._loudspeaker is None:
            spread(out, self._outputs)
            mix_down(self._outputs, out)
            self._hear(out)
            self._write(near, out)
        return True

    def _hear_loudspeaker(self) -> None:
        """What a loudspeaker on its own clock played during the block before, now that it is known."""
        if self._loudspeaker is None or self._block == 0:
            return
        frames = len(self._near)
        true_hz = self._rate_hz * (1 + self._spec.drift_ppm * 1e-6)
        played = self._loudspeaker.heard(((self._block - 1) * frames + np.arange(frames)) / true_hz)
        self._hear(played)
        self._write(self._near, played)

    def _let_ask(self, until_ns: int) -> bool:
        """The loudspeaker's requests before this time, each at its own; False where the device is being stopped."""
        while self._loudspeaker is not None and self._loudspeaker.next_ns <= until_ns:
            now_ns = self._loudspeaker.next_ns
            if self._spec.is_paced:
                if not self._wait_until(now_ns):
                    return False
                now_ns = time.monotonic_ns()
            self._loudspeaker.ask(now_ns)
        return True

    def _wait_until(self, time_ns: int) -> bool:
        """False where the device is being stopped."""
        wait_ns = time_ns - time.monotonic_ns()
        return not (wait_ns > 0 and self._stopping.wait(wait_ns / 1e9))

    def _hear(self, out: Float32Array) -> None:
        self._user.hear(out)
        if self._room is not None:
            self._room.hear(out)

    def _write(self, near: Float32Array, out: Float32Array) -> None:
        if self._spec.keep_output:
            self._kept.append(out.copy())
        if self._output_wav is not None:
            self._output_wav.write(out)
        if self._record_wav is not None:
            self._record_wav.write(np.stack((near, out), axis=1))

    def _pass_stall(self) -> None:
        """Where a stall begins at this block, let its time and its audio go by without a callback."""
        if not self._stalls or self._block < self._stalls[0][0]:
            return
        silence = np.zeros_like(self._out)
        for _ in range(self._stalls.pop(0)[1]):
            self._let_ask(self._due_ns())
            self._hear_loudspeaker()
            self._user.speak(self._near)
            self._block += 1
            if self._loudspeaker is None:
                self._hear(silence)

    def _due_ns(self) -> int:
        """When the block is complete by the device's own clock."""
        return self._origin_ns + round((self._block + 1) * BLOCK_NS / (1 + self._spec.drift_ppm * 1e-6))

    def _jitter_ns(self) -> int:
        return round(self._random.uniform(0.0, self._spec.jitter_ms) * 1e6) if self._spec.jitter_ms else 0

    def _time_ns(self) -> int:
        return time.monotonic_ns() if self._spec.is_paced else self._now_ns

    def _is_gone(self, now_ns: int) -> bool:
        spec = self._spec
        if spec.disappears_at_s is None or self._epoch_ns is None:
            return False
        gone_s = (now_ns - self._epoch_ns) / 1e9 - spec.disappears_at_s
        return gone_s >= 0 and (spec.returns_after_s is None or gone_s < spec.returns_after_s)
