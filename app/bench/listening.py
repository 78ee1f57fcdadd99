"""Transcribe a recording of any length with the product's own recogniser, cut at pauses as a live turn is."""

from __future__ import annotations

from audio.asr.growing import GrowingTranscript
from audio.block import HOP_SAMPLES, SAMPLE_RATE_HZ, Float32Array
from audio.meters.level import level_db
from audio.protocols import Asr
from audio.resample import resample

_VOICED_DB = -45.0


def transcribe_recording(asr: Asr, samples: Float32Array, rate_hz: int) -> str:
    """(N,) mono at any rate to text. Loudness stands in for voice activity: meant for clean captures."""
    heard = resample(samples, rate_hz, SAMPLE_RATE_HZ)
    transcript = GrowingTranscript()
    for start in range(0, len(heard) - HOP_SAMPLES + 1, HOP_SAMPLES):
        hop = heard[start : start + HOP_SAMPLES]
        transcript.feed(hop, level_db(hop) > _VOICED_DB)
    for request in transcript.final_requests(len(heard)):
        transcript.on_result(request.id, asr.transcribe(request.samples), len(heard), len(heard))
    return transcript.text
