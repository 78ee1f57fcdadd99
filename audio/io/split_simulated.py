"""A simulated microphone and loudspeaker on two clocks. See `SimulatedSpec`.

The room is physical: what the loudspeaker plays is a continuous sound (`Air`), and the microphone samples it by its
own clock. Nothing of the product's drift mapping is known here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from audio.block import HOPS_PER_SECOND, Float32Array
from audio.files import WavWriter
from audio.io.channels import mix_down, spread
from audio.io.device import Finished, SimulatedSpec, SpokenUtterance, candidate_rates_hz, refused_every_rate
from audio.io.room import Air
from audio.io.simulated import SimulatedDevice
from audio.io.split import HalfCallback, HalfFormat, SplitDevice

_NAME = "simulated loudspeaker"
_HISTORY_MS = 500


class SimulatedLoudspeaker:
    """A `DeviceHalf` that the microphone's simulated time drives."""

    def __init__(self, spec: SimulatedSpec) -> None:
        self._spec = spec
        self._rate_hz = 0
        self._callback: HalfCallback | None = None
        self._kept: list[Float32Array] = []
        self.next_ns = 0
        """See `OwnClock`."""

    def open(self) -> HalfFormat:
        """See `DeviceHalf`."""
        spec = self._spec
        rates_hz = candidate_rates_hz(spec.output_rate_hz or spec.rate_hz)
        accepted = [rate for rate in rates_hz if rate not in spec.output_refused_rates_hz]
        if not accepted:
            raise refused_every_rate(_NAME, rates_hz)
        self._rate_hz = accepted[0]
        frames = self._rate_hz // HOPS_PER_SECOND
        self._true_hz = self._rate_hz * (1 + (spec.output_drift_ppm or 0.0) * 1e-6)
        self._out = np.zeros(frames, np.float32)
        self._outputs = np.zeros((frames, spec.output_channels), np.float32)
        return HalfFormat(self._rate_hz, _NAME, spec.output_latency_ms)

    def start(self, callback: HalfCallback) -> None:
        """See `DeviceHalf`; nothing happens before `begin`."""
        self._callback = callback

    def stop(self) -> None:
        """See `DeviceHalf`; also completes the WAV file."""
        if self._callback is not None:
            self._callback = None
            if self._wav is not None:
                self._wav.close()

    @property
    def active(self) -> bool:
        """See `DeviceHalf`."""
        return self._callback is not None

    @property
    def finished(self) -> Finished | None:
        """See `DeviceHalf`: it never stops by itself."""
        return None

    @property
    def output(self) -> Float32Array:
        """See `SteppedDevice`."""
        return np.concatenate(self._kept) if self._kept else np.zeros(0, np.float32)

    def begin(self, origin_ns: int, microphone_hz: int) -> None:
        """See `OwnClock`."""
        spec = self._spec
        self._origin_ns = origin_ns
        self._air = Air(self._rate_hz, microphone_hz)
        self._history = np.zeros(self._rate_hz * _HISTORY_MS // 1000)
        self._played = 0  # frames since the beginning, the silence of a stopped stream included
        self._random = np.random.default_rng(spec.seed + 1)
        self._jumps = sorted(
            (round(at_s * self._rate_hz), round(jump_ms * self._rate_hz / 1000)) for at_s, jump_ms in spec.output_jumps
        )
        self._kept = []
        self._wav = WavWriter(spec.output_path, self._rate_hz) if spec.output_path else None
        self._schedule()

    def ask(self, time_ns: int) -> None:
        """See `OwnClock`."""
        out = self._request(time_ns)
        self._append(out)
        if self._jumps and self._played >= self._jumps[0][0]:
            frames = self._jumps.pop(0)[1]
            self._append(np.zeros(max(0, frames), np.float32))
            for _ in range(max(0, -frames) // len(out)):
                self._request(time_ns)  # asked for, and never played
        self._schedule()

    def heard(self, times_s: npt.NDArray[np.float64]) -> Float32Array:
        """See `OwnClock`: what has not been asked for in time is silence."""
        places = (times_s - self._spec.output_latency_ms / 1000) * self._true_hz
        oldest = self._played - len(self._history)
        room = np.zeros(self._air.half_width)
        sound = self._air.listen(np.concatenate((room, self._history, room)), places - oldest + len(room))
        return sound.astype(np.float32)

    def _request(self, time_ns: int) -> Float32Array:
        if self._callback is None:  # being stopped
            self._out.fill(0.0)
        else:
            self._callback(self._out, time_ns)
        spread(self._out, self._outputs)
        mix_down(self._outputs, self._out)
        return self._out

    def _append(self, played: Float32Array) -> None:
        count = len(played)
        self._history[: len(self._history) - count] = self._history[count:]
        self._history[len(self._history) - count :] = played
        self._played += count
        if self._spec.keep_output:
            self._kept.append(played.copy())
        if self._wav is not None:
            self._wav.write(played)

    def _schedule(self) -> None:
        due_ns = self._origin_ns + round(self._played * 1e9 / self._true_hz)
        self.next_ns = due_ns + round(self._random.uniform(0.0, self._spec.output_jitter_ms) * 1e6)


class _Microphone:
    """A simulated device as the `DeviceHalf` that listens."""

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device

    def open(self) -> HalfFormat:
        stream = self._device.open()
        return HalfFormat(stream.rate_hz, stream.input_name, 0.0)

    def start(self, callback: HalfCallback) -> None:
        self._device.start(lambda near, out, time_ns: callback(near, time_ns))

    def stop(self) -> None:
        self._device.stop()

    @property
    def active(self) -> bool:
        return self._device.active

    @property
    def finished(self) -> Finished | None:
        return self._device.finished


class SimulatedSplitDevice(SplitDevice):
    """The simulated `SteppedDevice` on two clocks."""

    def __init__(self, spec: SimulatedSpec) -> None:
        self._own_clock = SimulatedLoudspeaker(spec)
        self._device = SimulatedDevice(spec, self._own_clock)
        super().__init__(_Microphone(self._device), self._own_clock)

    def step(self, n_blocks: int = 1) -> int:
        """See `SteppedDevice`."""
        return self._device.step(n_blocks)

    @property
    def output(self) -> Float32Array:
        """See `SteppedDevice`."""
        return self._own_clock.output

    def spoken(self) -> tuple[SpokenUtterance, ...]:
        """See `AudioDevice`."""
        return self._device.spoken()
