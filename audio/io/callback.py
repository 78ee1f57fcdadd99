"""What happens in one block of the sound device: play the reply or obey a stop word, then record both sides.

It runs in the device's real-time thread: no lock, log, I/O or array allocation of ours. It knows neither
PortAudio nor where the rings lie.
"""

from __future__ import annotations

import numpy as np

from audio.block import Float32Array
from audio.clock import BLOCK_NS, LossMeter
from audio.control import ControlWords
from audio.io.records import FLAG_FADED, FLAG_REPLY, FLAG_UNDERRUN
from audio.ring import RecordRing

HEARTBEAT_LIMIT_NS = 500_000_000
"""An engine that has given no sign of life for this long is silenced."""
_LATE_NS = 2 * BLOCK_NS


class DuplexCallback:
    """The callback rule.

    The next playback record sounds iff its generation is the one in `control`, nothing is muted and the
    heartbeat is fresh. Records of older generations are dropped; records that are silenced by mute or
    heartbeat stay and go on afterwards. Where a stop word or an empty ring ends the sound inside a reply,
    the next block fades out: over the reply's own next record if it is there, else over the sample held last.

    On rings that an earlier callback left (its process died, or the device was lost) it goes on: block numbers
    continue, a reply plays from its next record, and what the gap swallowed counts as lost.
    """

    def __init__(self, mic_ring: RecordRing, playback_ring: RecordRing, control: ControlWords, rate_hz: int) -> None:
        frames = rate_hz // 100
        self._mic = mic_ring
        self._playback = playback_ring.consumer()
        self._control = control
        columns = mic_ring.columns
        self._mic_index, self._mic_time_ns = columns["index"], columns["time_ns"]
        self._mic_generation, self._mic_reply_frames = columns["generation"], columns["reply_frames"]
        self._mic_flags, self._mic_near, self._mic_far = columns["flags"], columns["near"], columns["far"]
        self._samples, self._generations = playback_ring.columns["samples"], playback_ring.columns["generation"]
        self._end_frames, self._lasts = playback_ring.columns["end_frames"], playback_ring.columns["last"]
        self._loss = LossMeter(rate_hz)
        self._fade = (0.5 + 0.5 * np.cos(np.pi * np.arange(1, frames + 1) / frames)).astype(np.float32)
        self._index = mic_ring.written
        self._gap_from_ns = 0
        self._generation = 0
        self._reply_frames = 0
        if self._index:
            last = (mic_ring.position - 1) % mic_ring.capacity
            self._gap_from_ns = int(self._mic_time_ns[last])
            self._generation = int(self._mic_generation[last])
            self._reply_frames = int(self._mic_reply_frames[last])
        self._rate_hz = rate_hz
        self._previous_ns = 0
        self._sounding = False  # the block before was reply audio, and not its last
        self._unfinished = False  # the reply of `_generation` has begun and its last block has not come
        self._starving = False
        self._held = np.float32(0.0)

    def __call__(self, near: Float32Array, out: Float32Array, time_ns: int) -> None:
        """(B,) microphone in, (B,) loudspeaker filled whatever happens; `time_ns` is monotonic, at entry."""
        flags = self._fill(out, time_ns)
        at = self._mic.position
        self._mic_index[at] = self._index
        self._mic_time_ns[at] = time_ns
        self._mic_generation[at] = self._generation
        self._mic_reply_frames[at] = self._reply_frames
        self._mic_flags[at] = flags
        self._mic_near[at] = near
        self._mic_far[at] = out
        self._mic.commit()
        self._count(time_ns)

    def _fill(self, out: Float32Array, time_ns: int) -> int:
        """Write the loudspeaker block; its flags."""
        control = self._control
        generation = control.generation
        heartbeat_ns = control.heartbeat_ns
        allowed = not control.muted and (heartbeat_ns == 0 or time_ns - heartbeat_ns < HEARTBEAT_LIMIT_NS)
        at = self._playback.position
        if self._sounding and (not allowed or generation != self._generation):
            self._fade_out(out, at)
            self._drop_older(at, generation)
            return FLAG_FADED
        at = self._drop_older(at, generation)
        if allowed and at >= 0 and self._generations[at] == generation:
            self._play(out, at, generation)
            return FLAG_REPLY
        if allowed and self._unfinished and generation == self._generation:
            return self._starve(out)
        out.fill(0.0)
        return 0

    def _play(self, out: Float32Array, at: int, generation: int) -> None:
        out[:] = self._samples[at]
        self._held = out[-1]
        self._generation = generation
        self._reply_frames = int(self._end_frames[at])
        self._sounding = self._unfinished = not self._lasts[at]
        self._starving = False
        self._playback.pop()

    def _starve(self, out: Float32Array) -> int:
        """The ring is empty inside a reply."""
        flags = FLAG_UNDERRUN
        if self._sounding:
            self._fade_out(out, -1)
            flags |= FLAG_FADED
        else:
            out.fill(0.0)
        if not self._starving:
            self._starving = True
            self._control.underruns += 1
        return flags

    def _fade_out(self, out: Float32Array, at: int) -> None:
        if at >= 0 and self._generations[at] == self._generation:
            np.multiply(self._samples[at], self._fade, out=out)
        else:
            np.multiply(self._fade, self._held, out=out)
        self._sounding = False

    def _drop_older(self, at: int, generation: int) -> int:
        """Give older records back; the slot of the next record, or -1."""
        while at >= 0 and self._generations[at] < generation:
            self._playback.pop()
            at = self._playback.position
        return at

    def _count(self, time_ns: int) -> None:
        control = self._control
        self._index += 1
        control.blocks = self._index
        if self._gap_from_ns:
            control.lost_frames += max(0, time_ns - self._gap_from_ns - BLOCK_NS) * self._rate_hz // 1_000_000_000
            self._gap_from_ns = 0
        elif self._previous_ns and time_ns - self._previous_ns > _LATE_NS:
            control.late_blocks += 1
        self._previous_ns = time_ns
        lost = self._loss.observe(time_ns)
        if lost:
            control.lost_frames += lost
