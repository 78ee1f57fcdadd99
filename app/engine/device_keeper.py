"""Keeps the sound device: opens it, notices each kind of loss, goes on with another, returns to the one that was named.

Three kinds of loss, each with what notices it: callbacks cease (the audio process's watchdog on frames), the server
goes (PortAudio ends the stream), the server silently moves our stream (the server's own events).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from app import events
from app.crash import describe_death
from app.engine.recovery import Outage
from app.engine.round_trips import DevicePair, RoundTrips, device_pair
from app.log import LogSpec, setup_log
from audio.block import HOP_SAMPLES
from audio.errors import DeviceError
from audio.io.bluetooth import advise
from audio.io.device import DeviceSpec, PortAudioSpec, StreamFormat
from audio.io.drift_mapper import SplitStats
from audio.io.identity import ServerDevice
from audio.io.process import AudioProcess
from audio.io.pulse import ServerWatcher, look
from audio.io.server import (
    DeviceBack,
    DeviceGone,
    DeviceResumed,
    DeviceSuspended,
    ServerBack,
    ServerEvent,
    ServerGone,
    ServerView,
    StreamMoved,
    exact_name,
)
from audio.io.stream_child import DeviceRunning, DeviceStopped, DriftMeasured

_RETRY_S = 0.1
_FAILED_RETRY_S = 1.0


class DeviceKeeper:
    """`start`, then `poll` often, `stop` at the end. `audio` has rings and words all the time between."""

    def __init__(
        self,
        spec: DeviceSpec,
        when_lost: str,
        emit: Callable[[events.Event], None],
        trips: RoundTrips,
        log: LogSpec | None = None,
    ) -> None:
        """`when_lost`: `default` goes on with another device meanwhile, `wait` does not."""
        self._wanted = spec
        self._when_lost = when_lost
        self._emit = emit
        self._trips = trips
        self._log = log
        self._pair: DevicePair | None = None
        self._watcher: ServerWatcher | None = None
        self._opened = self._wanted
        self._is_makeshift = False
        self._hint = ""
        self._misplaced: dict[bool, str] = {}
        """Streams (is it the microphone's?) that the server has put elsewhere, and the sentence about it."""
        self._outage: Outage | None = None
        self.stream: StreamFormat | None = None
        """Of the stream that runs, or ran last."""
        self.audio: AudioProcess

    @property
    def now_samples(self) -> int:
        """Input index by the callback's count of blocks."""
        return int(self.audio.control.blocks) * HOP_SAMPLES if self.stream is not None else 0

    def start(self, before_stream: Callable[[StreamFormat], None]) -> StreamFormat:
        """Open the device; `before_stream` as in `AudioProcess.start`.

        Raises:
            AudioError: it cannot be opened, with the fix.
        """
        view = None
        if isinstance(self._wanted, PortAudioSpec):
            view, _ = look()
            self._heed_bluetooth(view)
            self._opened = self._exact(view)
        on_birth = None if self._log is None else partial(setup_log, self._log, "audio", is_quiet=True)
        self.audio = AudioProcess(self._opened, on_birth)

        def begin(stream: StreamFormat) -> None:
            self._name_pair(stream, view)
            before_stream(stream)

        stream = self.audio.start(begin)
        self.stream = stream
        if isinstance(self._wanted, PortAudioSpec):
            self._watcher = ServerWatcher(self._wanted.input_name, self._wanted.output_name)
            self._watcher.follow(self.audio.pid)
        self._show(stream)
        return stream

    def poll(self) -> DeviceStopped | None:
        """See to the device; what ended the stream, where its end is no loss."""
        for event in self._watcher.poll() if self._watcher is not None else ():
            self._heed_server(event)
        pid = self.audio.pid
        for happened in self.audio.poll_events():
            match happened:
                case DeviceStopped(is_lost=False):
                    return happened
                case DeviceStopped() if self._outage is not None:  # what waited for the device has ended too
                    self._outage.start_again_at(time.monotonic() + _FAILED_RETRY_S)
                case DeviceStopped(reason):
                    reason += describe_death(self._log, "audio", pid)
                    self._lose(f"{reason}; {self._hint}" if self._hint else reason)
                case DriftMeasured(stats):
                    self._show_drift(stats)
                case DeviceRunning(stream, is_fallback):
                    self._regain(stream, is_makeshift=is_fallback)
        if self._outage is not None and self._outage.wants_start(time.monotonic()):
            self._restart(self._outage)
        return None

    def stop(self) -> None:
        """Close the device and remove the rings. Harmless where nothing runs."""
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None
        if hasattr(self, "audio"):
            self.audio.stop()

    def stored_round_trip_ms(self) -> float | None:
        """What an earlier session measured with this pair of devices."""
        trip = self._trips.load(self._pair) if self._pair is not None else None
        return trip.delay_ms if trip is not None else None

    def store_round_trip(self, delay_ms: float, confidence: float) -> None:
        """Keep what was measured with the pair that is open."""
        if self._pair is not None and isinstance(self._wanted, PortAudioSpec):
            self._trips.store(self._pair, delay_ms, confidence)

    # -- loss and return --------------------------------------------------------------------------------------

    def _heed_server(self, event: ServerEvent) -> None:
        """What the server says of our streams and of the wanted devices."""
        match event:
            case StreamMoved():
                self._heed_move(event)
            case DeviceGone(_, name) if not self._is_makeshift:
                self._lose(f"{name} is gone")
            case DeviceSuspended(_, name):
                self._hint = f"{name} is suspended"
            case ServerGone(reason):
                self._hint = reason
            case DeviceResumed() | ServerBack():
                self._hint = ""
            case DeviceBack() if self._is_makeshift:
                self._emit(events.Notice(self.now_samples, "info", f"{event.name} is back; returning to it"))
                self._outage = Outage(time.monotonic())
            case DeviceBack() if self._outage is not None and self._opened != self._exact_now():
                self._outage.start_again_at(0.0)  # under another name than the one that is waited for

    def _heed_move(self, move: StreamMoved) -> None:
        """A makeshift is not where the user wanted it; but nobody may hear their own loudspeaker."""
        self._misplaced.pop(move.is_input, None)
        if move.is_wanted or (self._is_makeshift and not move.is_own_monitor):
            return
        what = "microphone" if move.is_input else "loudspeaker"
        where = "our own loudspeaker's monitor" if move.is_own_monitor else move.now
        self._misplaced[move.is_input] = f"the sound server moved the {what} to {where}"
        self._lose(self._misplaced[move.is_input])

    def _lose(self, reason: str) -> None:
        if self._outage is not None:
            return  # said already
        self._outage = Outage(time.monotonic())
        self._emit(events.DeviceLost(self.now_samples, self._name(), reason))

    def _restart(self, outage: Outage) -> None:
        view = self._view
        if view is not None and isinstance(self._wanted, PortAudioSpec):
            ends = ((self._wanted.input_name, True), (self._wanted.output_name, False))
            if not all(name or view.is_present("", is_input=is_input) for name, is_input in ends):
                outage.start_again_at(time.monotonic() + _RETRY_S)  # opened now, the default would be a monitor
                return
        self._opened = self._exact_now()
        self._misplaced.clear()
        self.audio.restart(self._opened, self._makeshift(view))
        if self._watcher is not None:
            self._watcher.follow(self.audio.pid)

    def _regain(self, stream: StreamFormat, *, is_makeshift: bool) -> None:
        self._outage, self._is_makeshift, self._hint = None, is_makeshift, ""
        self.stream = stream
        self._name_pair(stream, self._view)
        if is_makeshift:
            message = f"going on with {stream.input_name} and {stream.output_name} until {self._name()} is back"
            self._emit(events.Notice(self.now_samples, "warning", message))
        else:
            self._emit(events.DeviceBack(self.now_samples, self._name()))
        self._show(stream)
        for reason in list(self._misplaced.values()):  # it was moved while it was being opened
            self._lose(reason)

    # -- names ------------------------------------------------------------------------------------------------

    @property
    def _view(self) -> ServerView | None:
        return self._watcher.view if self._watcher is not None else None

    def _exact_now(self) -> DeviceSpec:
        """As `_exact`; where two devices answer to the name by now, the one that was open."""
        try:
            return self._exact(self._view)
        except DeviceError:
            return self._opened

    def _exact(self, view: ServerView | None) -> DeviceSpec:
        """The wanted devices by the names that the server has for them now."""
        if not isinstance(self._wanted, PortAudioSpec):
            return self._wanted
        source = exact_name(view, self._wanted.input_name, is_input=True) if self._wanted.input_name else ""
        sink = exact_name(view, self._wanted.output_name, is_input=False) if self._wanted.output_name else ""
        return replace(self._wanted, input_name=source, output_name=sink)

    def _makeshift(self, view: ServerView | None) -> DeviceSpec | None:
        """What to use until the named device is back: for each end that is missing, the server's best other one."""
        spec = self._opened
        if self._when_lost != "default" or view is None or not isinstance(spec, PortAudioSpec):
            return None
        source = _there_or_other(view, spec.input_name, is_input=True)
        sink = _there_or_other(view, spec.output_name, is_input=False)
        if source is None or sink is None:
            return None
        makeshift = replace(spec, input_name=source, output_name=sink)
        return None if makeshift == spec else makeshift

    def _heed_bluetooth(self, view: ServerView | None) -> None:
        if view is None or not isinstance(self._wanted, PortAudioSpec):
            return
        with suppress(DeviceError):  # two alike: opening them says so
            advice = advise(view, self._wanted.input_name, self._wanted.output_name)
            self._wanted = replace(self._wanted, input_name=advice.input_name or self._wanted.input_name)
            if advice.warning:
                self._emit(events.Notice(0, "warning", f"{advice.warning}. {advice.fix}"))

    def _name_pair(self, stream: StreamFormat, view: ServerView | None) -> None:
        wanted = self._wanted if isinstance(self._wanted, PortAudioSpec) else PortAudioSpec()
        self._pair = device_pair(stream, wanted.input_name, wanted.output_name, view)

    def _name(self) -> str:
        if not isinstance(self._wanted, PortAudioSpec):
            return "simulated device"
        names = dict.fromkeys(name for name in (self._wanted.input_name, self._wanted.output_name) if name)
        return " and ".join(names) or "the default sound device"

    def _show_drift(self, stats: SplitStats) -> None:
        drift = (round(stats.drift_ppm, 1), round(stats.fill_ms, 1), round(stats.depth_ms, 1))
        self._emit(events.DeviceDrift(self.now_samples, *drift, stats.underruns, stats.jumps))

    def _show(self, stream: StreamFormat) -> None:
        self._emit(
            events.DeviceOpened(
                self.now_samples,
                stream.input_name,
                stream.output_name,
                stream.rate_hz,
                stream.output_latency_ms,
                self.audio.priority,
            )
        )


def _there_or_other(view: ServerView, name: str, *, is_input: bool) -> str | None:
    """The named device where it is there, else the server's default or any other real one; None where none is left."""
    if not name or view.is_present(name, is_input=is_input):
        return name
    default = view.default_input if is_input else view.default_output
    others: list[ServerDevice] = [d for d in view.devices if d.is_input == is_input and not d.monitor_of]
    others.sort(key=lambda device: device.name != default)
    return others[0].name if others else None
