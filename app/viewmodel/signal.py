"""What the sound is like: levels, speech, double talk, a spectrogram, losses, and how the devices' clocks run."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from app import events
from app.notices import sound_lost_ms
from app.viewmodel.base import ViewModel
from app.viewmodel.levels import HeldLevel, SnrEstimate
from app.viewmodel.spectrum import COLUMNS_PER_S, ROWS, Spectrum
from audio.block import HOPS_PER_SECOND, SAMPLE_RATE_HZ, SILENCE_DB
from audio.meters.level import level_db
from audio.ring import RecordArray, RecordRing, RingReader

_Scalar = TypeVar("_Scalar", np.uint8, np.float32, np.bool_)
HISTORY_S = 20
_COLUMNS = HISTORY_S * COLUMNS_PER_S
_AT_MOST_S = 0.3
"""Between two levels; what is longer was a pause of the events."""
_NOISE_PROBABILITY = 0.2


class MicTap:
    """Reads the ring of microphone and loudspeaker blocks beside those that live from it."""

    def __init__(self) -> None:
        self._ring: RecordRing | None = None
        self._reader: RingReader | None = None
        self.rate_hz = 0
        """Of the blocks; 0 where there is no ring."""

    def follow(self, ring: RecordRing | None) -> None:
        """The present conversation's ring, None between two; asked as often as one likes."""
        if ring is self._ring:
            return
        self._ring, self._reader = ring, None
        self.rate_hz = 0 if ring is None else ring.columns["near"].shape[1] * HOPS_PER_SECOND

    def read(self) -> RecordArray | None:
        """Blocks since the last call, None where there is no ring. The first call begins with what comes next."""
        if self._ring is None:
            return None
        if self._reader is None:
            self._reader = self._ring.reader()
        return self._reader.read()

    def rest(self) -> None:
        """Nobody looks: the next `read` begins anew."""
        self._reader = None


class History:
    """The last 20 s, a column each fifteenth of a second. Arrays are circular; `written` columns were ever made."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Nothing was heard yet."""
        self.written = 0
        self.spectra: npt.NDArray[np.uint8] = np.zeros((ROWS, _COLUMNS), np.uint8)
        """(ROWS, columns), lowest frequency first."""
        self.probability: npt.NDArray[np.float32] = np.zeros(_COLUMNS, np.float32)
        self.is_speech: npt.NDArray[np.bool_] = np.zeros(_COLUMNS, np.bool_)
        self.is_reply: npt.NDArray[np.bool_] = np.zeros(_COLUMNS, np.bool_)

    def add(self, spectrum: npt.NDArray[np.uint8], probability: float, *, is_speech: bool, is_reply: bool) -> None:
        """One column."""
        at = self.written % _COLUMNS
        self.spectra[:, at] = spectrum
        self.probability[at] = probability
        self.is_speech[at], self.is_reply[at] = is_speech, is_reply
        self.written += 1

    def in_order(self, circular: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
        """One of the arrays with its oldest column first."""
        return np.roll(circular, -(self.written % _COLUMNS), axis=-1)


class Signal(ViewModel):
    """Figures come with events; `advance` moves the meters and the history while somebody looks at them."""

    def __init__(self, speech_on: float) -> None:
        """`speech_on`: the probability from which the ear takes sound for speech."""
        super().__init__()
        self._speech_on = speech_on
        self.tap = MicTap()
        self.microphone, self.far_end, self.clean = HeldLevel(), HeldLevel(), HeldLevel()
        self.history = History()
        self.round_trip_ms: float | None = None
        self.drift_ppm: float | None = None
        """None where one clock drives both devices."""
        self._rate_hz = 0
        self._spectrum: Spectrum | None = None
        self._begin()

    def _begin(self) -> None:
        """As before the first sound of a conversation."""
        self.speech_probability: float | None = None
        self.is_speaking = False
        """The ear has decided that the user does."""
        self.is_replying = False
        """A reply leaves the loudspeaker."""
        self.double_talk_s = 0.0
        self.late_ms: float | None = None
        """How far the ear is behind the microphone."""
        self.device_lost_ms = 0.0
        """Sound that the device never delivered."""
        self.unheard_ms = 0
        """Sound that came but found this machine too busy."""
        self.gaps = 0
        """Times that a reply had no sound to play."""
        self._snr = SnrEstimate()
        self._metered_samples = 0

    @property
    def is_double_talk(self) -> bool:
        """The user speaks while a reply plays."""
        return self.is_replying and self._hears_speech

    @property
    def snr_db(self) -> float | None:
        """See `SnrEstimate`."""
        return self._snr.snr_db

    @property
    def _hears_speech(self) -> bool:
        return self.is_speaking or (self.speech_probability or 0.0) >= self._speech_on

    # -- events -----------------------------------------------------------------------------------------------

    def take(self, event: events.Event) -> None:
        """See `ViewModel`."""
        match event:
            case events.Meters():
                self._meter(event)
            case events.UserSpeechStarted():
                self.is_speaking = True
            case events.UserSpeechEnded() | events.TurnDropped():
                self.is_speaking = False
            case events.Playback(playing=playing):
                self.is_replying = playing
            case events.DeviceOpened(rate_hz=rate_hz):
                self._rate_hz = rate_hz
                self.round_trip_ms = self.drift_ppm = None
            case events.DeviceRoundTrip(delay_ms=delay_ms):
                self.round_trip_ms = delay_ms
            case events.DeviceDrift(drift_ppm=drift_ppm):
                self.drift_ppm = drift_ppm
            case events.Notice(message=message) if lost_ms := sound_lost_ms(message):
                self.unheard_ms += lost_ms
            case events.SessionStarted():
                self._begin()
            case events.SessionEnded():
                self.is_speaking = self.is_replying = False
                self.speech_probability = self.late_ms = None
                for meter in (self.microphone, self.far_end, self.clean):
                    meter.push(SILENCE_DB)
            case _:
                return
        self.changed()

    def _meter(self, meters: events.Meters) -> None:
        self.speech_probability = meters.speech_probability
        self.late_ms = meters.hop_late_ms
        self.device_lost_ms = meters.lost_frames * 1000 / self._rate_hz if self._rate_hz else 0.0
        self.gaps = meters.underruns
        self.clean.push(meters.clean_level_db)
        if not self.tap.rate_hz:
            self.microphone.push(meters.level_db)
            self.far_end.push(meters.far_level_db)
        step_s = min((meters.at_samples - self._metered_samples) / SAMPLE_RATE_HZ, _AT_MOST_S)
        self._metered_samples = meters.at_samples
        if self.is_double_talk:
            self.double_talk_s += max(0.0, step_s)
        is_noise = not self._hears_speech and meters.speech_probability < _NOISE_PROBABILITY
        is_noise = is_noise and meters.level_db > SILENCE_DB  # digital silence is no microphone's floor
        self._snr.push(
            meters.level_db,
            is_speech=self._hears_speech and not self.is_replying,
            is_noise=is_noise and not self.is_replying,
        )

    # -- while it is looked at ----------------------------------------------------------------------------------

    def advance(self, now_s: float) -> tuple[bool, bool]:
        """Move to monotonic `now_s`: whether a meter moved, and whether the history has a new column."""
        columns = self._listen()
        meters = [meter.advance(now_s) for meter in (self.microphone, self.far_end, self.clean)]
        return any(meters), columns > 0

    def rest(self) -> None:
        """Nobody looks any more; what sounds meanwhile is not in the history."""
        self.tap.rest()
        self._spectrum = None
        self.history.clear()

    def _listen(self) -> int:
        """Take what the ring has; columns made."""
        blocks = self.tap.read()
        if blocks is None:
            self._spectrum = None
            return 0
        if self._spectrum is None:
            self._spectrum = Spectrum(self.tap.rate_hz)
            self.history.clear()  # of another conversation
        if not len(blocks):
            return 0
        near = np.nan_to_num(blocks["near"].reshape(-1))
        self.microphone.push(level_db(near))
        self.far_end.push(level_db(blocks["far"].reshape(-1)))
        columns = self._spectrum.push(near)
        for column in columns:
            self.history.add(
                column, self.speech_probability or 0.0, is_speech=self._hears_speech, is_reply=self.is_replying
            )
        return len(columns)
