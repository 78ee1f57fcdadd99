"""What a sound device is to the rest of the product, and how one is described across processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from audio.block import AudioBlock, Float32Array
from audio.errors import DeviceError
from audio.io.drift_mapper import SplitStats

BlockCallback = Callable[[Float32Array, Float32Array, int], None]
"""(near (B,), out (B,), monotonic time in ns at entry): read the microphone, fill the loudspeaker."""

AudioSource = str | AudioBlock
"""Path of an audio file, or samples."""

FALLBACK_RATES_HZ = (48_000, 44_100, 16_000)


@dataclass(frozen=True, slots=True)
class StreamFormat:
    """What an opened device turned out to be."""

    rate_hz: int
    block_frames: int
    """Always 10 ms."""
    input_name: str
    output_name: str
    mode: str
    """`duplex`, `split` or `simulated`."""
    output_latency_ms: float
    """From the callback's copy to the loudspeaker, as the driver reports it."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Why a device stopped by itself."""

    reason: str
    is_lost: bool
    """False where the input came to its end."""


@dataclass(frozen=True, slots=True)
class SpokenUtterance:
    """When a scripted user really spoke. All counted in device frames since the start."""

    name: str
    start_frames: int
    onset_frames: int
    """First frame above the recording's silence."""
    end_frames: int
    """Behind the last frame above the recording's silence."""
    is_interruption: bool


class AudioDevice(Protocol):
    """A microphone and a loudspeaker on one clock. `open`, `start`, `stop`; then it may be opened again."""

    def open(self) -> StreamFormat:
        """Claim the device.

        Raises:
            DeviceError: missing, ambiguous, or no rate that is a multiple of 100 Hz is accepted.
        """
        ...

    def start(self, callback: BlockCallback) -> None:
        """Call back every 10 ms from a thread of the device's own."""
        ...

    def stop(self) -> None:
        """No callback after this returns. Harmless where nothing runs."""
        ...

    @property
    def active(self) -> bool:
        """Whether callbacks are to be expected."""
        ...

    @property
    def finished(self) -> Finished | None:
        """Set once the device has stopped by itself."""
        ...

    @property
    def stats(self) -> SplitStats | None:
        """How two clocks get on; None for a device of one clock."""
        ...

    def spoken(self) -> tuple[SpokenUtterance, ...]:
        """What a scripted user has said; nothing for any other input."""
        ...


class SteppedDevice(AudioDevice, Protocol):
    """A simulated device: where it is not paced, its caller moves it on."""

    def step(self, n_blocks: int = 1) -> int:
        """Run by up to `n_blocks` callbacks; how many there were before it finished."""
        ...

    @property
    def output(self) -> Float32Array:
        """What left the loudspeaker since `start`, (N,) at the loudspeaker's rate; needs `keep_output`."""
        ...


@dataclass(frozen=True, slots=True)
class PortAudioSpec:
    """A real device pair. Names may be parts of names; "" is the system's default."""

    input_name: str = ""
    output_name: str = ""
    rate_hz: int | None = None
    """Tried first; None takes the device's own rate. Of two streams, the microphone's."""
    mode: str = "auto"
    """`duplex`: one stream; `split`: two; `auto`: one where both are the same hardware and it opens."""


@dataclass(frozen=True, slots=True, eq=False)
class RoomSpec:
    """How the loudspeaker reaches the microphone."""

    impulse_response: AudioSource | None = None
    """None: noise that decays by 60 dB in `rt60_ms`, from `seed`."""
    rt60_ms: float = 250.0
    seed: int = 0
    erl_db: float = 20.0
    """Echo return loss: by how much white noise from the loudspeaker is weaker at the microphone."""
    delay_ms: float = 40.0
    """From a far sample to the first echo sample in the same index; at least one block (10 ms)."""
    soft_clip: float = 0.0
    """Loudspeaker distortion: tanh(a x) / a of the far signal; 0 is a perfect loudspeaker."""
    noise_db: float | None = None
    """Level of white room noise, dBFS rms; None is silence."""
    noise_seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Utterance:
    """One thing that a scripted user says."""

    source: AudioSource
    interrupt_after_s: float | None = None
    """Start this long after the answer to the utterance before became audible, instead of waiting for its end."""
    gain_db: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class ScriptSpec:
    """A user who speaks, listens, and goes on when the answer is over."""

    utterances: tuple[Utterance, ...]
    lead_s: float = 1.0
    """Silence before the first utterance."""
    pause_s: float = 1.5
    """An answer is over when the agent has been silent for this long."""
    last_pause_s: float = 6.0
    """The last answer is over, and the script with it, after this silence: slow machines pause between clauses, too."""
    timeout_s: float = 15.0
    """Go on without an answer after this long."""
    audible_db: float = -50.0
    """An output block at or above this level, dBFS rms, is agent speech."""


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedSpec:
    """A device made of files and arrays, with its own clock and faults. Equal specs give equal samples."""

    input: AudioSource | ScriptSpec | None = None
    """None is silence without end. A recording ends the device when it is over and `tail_s` has passed."""
    tail_s: float = 0.0
    room: RoomSpec | None = None
    is_paced: bool = True
    """False: the caller steps it, and block times are simulated."""
    rate_hz: int = 48_000
    refused_rates_hz: tuple[int, ...] = ()
    drift_ppm: float = 0.0
    """Positive: the device's clock is fast."""
    jitter_ms: float = 0.0
    """Each callback is late by up to this, uniformly."""
    stalls: tuple[tuple[float, float], ...] = ()
    """(at_s, duration_s) of stream time in which no callback comes and the audio is lost."""
    disappears_at_s: float | None = None
    returns_after_s: float | None = None
    """How long opening fails after the disappearance; None is for ever."""
    epoch_ns: int | None = None
    """Monotonic time from which the disappearance is counted; None is the first start of the device."""
    output_latency_ms: float = 0.0
    input_channels: int = 1
    output_channels: int = 1
    output_rate_hz: int | None = None
    """Together with the next: a loudspeaker on a clock of its own, so a split device. None: the microphone's rate."""
    output_drift_ppm: float | None = None
    """Positive: the loudspeaker's clock is fast. Both None: one clock for both, a duplex device."""
    output_refused_rates_hz: tuple[int, ...] = ()
    output_jumps: tuple[tuple[float, float], ...] = ()
    """(at_s, jump_ms) of a split device's loudspeaker: it stops so long, or swallows so much at once (negative)."""
    output_jitter_ms: float = 0.0
    """Each request of a split device's loudspeaker is late by up to this, uniformly."""
    seed: int = 0
    """Of the jitter."""
    keep_output: bool = False
    """Keep the loudspeaker signal in memory (`SimulatedDevice.output`)."""
    output_path: str | None = None
    """WAV of the loudspeaker signal."""
    record_path: str | None = None
    """Two-channel WAV: microphone, loudspeaker."""

    @property
    def is_split(self) -> bool:
        """The loudspeaker has a clock of its own."""
        return self.output_rate_hz is not None or self.output_drift_ppm is not None


DeviceSpec = PortAudioSpec | SimulatedSpec


def make_device(spec: DeviceSpec) -> AudioDevice:
    """The device that a specification describes, not yet opened."""
    if isinstance(spec, PortAudioSpec):
        from audio.io.portaudio import PortAudioDevice

        return PortAudioDevice(spec)
    return make_simulated(spec)


def make_simulated(spec: SimulatedSpec) -> SteppedDevice:
    """The simulated device of a specification, on one clock or two."""
    if spec.is_split:
        from audio.io.split_simulated import SimulatedSplitDevice

        return SimulatedSplitDevice(spec)
    from audio.io.simulated import SimulatedDevice

    return SimulatedDevice(spec)


def candidate_rates_hz(preferred_hz: float) -> tuple[int, ...]:
    """Rates to try in turn: the preferred one if 10 ms of it are whole frames, then the usual ones."""
    first = (round(preferred_hz),) if preferred_hz > 0 and preferred_hz % 100 == 0 else ()
    return first + tuple(rate for rate in FALLBACK_RATES_HZ if rate not in first)


def refused_every_rate(device: str, rates_hz: tuple[int, ...]) -> DeviceError:
    """The error of a device that cannot be opened at any rate tried."""
    tried = ", ".join(str(rate) for rate in rates_hz)
    fix = "Choose another device (`vivavoce devices` lists them) or close the program that holds it"
    return DeviceError(f"{device} refuses every sample rate tried ({tried} Hz)", device=device, fix=fix)
