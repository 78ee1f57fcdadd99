"""Every configuration key, with its unit, its range and what it is for. The defaults are `assets/default.toml`.

A key is here only if something reads it. No field has a default in code, so there is one place to look for it.
"""

from __future__ import annotations

import os
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Threads = Annotated[int, Field(ge=1, le=64)]
Stage = Literal["echo", "denoise"]
Folder = Annotated[str, AfterValidator(os.path.expanduser)]
Probability = Annotated[float, Field(ge=0.0, le=1.0)]


class Section(BaseModel):
    """A table of the file: no unknown keys, no change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class AudioSection(Section):
    """Microphone and loudspeaker."""

    input: str = Field(description="Microphone by name or part of it; empty: the system's default")
    output: str = Field(description="Loudspeaker by name or part of it; empty: the system's default")
    rate_hz: Literal[0, 8000, 16000, 32000, 44100, 48000, 96000] = Field(
        description="Device rate in Hz; 0: the device's own"
    )
    mode: Literal["auto", "duplex", "split"] = Field(
        description="duplex: one stream; split: two, with their clocks matched; auto: one where it opens"
    )


class EarSection(Section):
    """From the microphone signal to clean speech."""

    chain: list[Literal["echo", "denoise"]] = Field(
        description="Stages that the signal passes, in order; speech recognition hears the end of the chain"
    )
    vad_after: Literal["echo", "denoise", ""] = Field(
        description="The stage whose output the voice detectors hear; empty: the bare microphone"
    )
    vad_model: str = Field(description="Model of role vad; see: vivavoce models list")
    gate_mode: int = Field(ge=0, le=3, description="Aggressiveness of the fast voice gate; 3 passes least")
    speech_on: Probability = Field(description="Speech probability from which the judge hears speech")
    speech_off: float = Field(
        gt=0.0, le=1.0, description="Speech probability below which it hears silence; under speech_on"
    )


class TurnSection(Section):
    """When the user has finished, and when they take the floor."""

    model: str = Field(description="Model of role turn; see: vivavoce models list")
    min_silence_ms: int = Field(ge=50, le=2000, description="Silence in ms after which the end-of-turn model is asked")
    complete_threshold: Probability = Field(description="Its probability from which the turn is over at once")
    max_silence_ms: int = Field(ge=200, le=20000, description="Silence in ms that ends a turn whatever the model says")
    barge_in_ms: int = Field(ge=30, le=2000, description="Speech in ms during a reply that stops the reply")
    cold_barge_in_ms: int = Field(
        ge=30, le=2000, description="The same in ms while the ear cannot yet tell its own echo from a user"
    )
    barge_in_threshold: Probability = Field(description="Speech probability that counts as speech during a reply")
    preroll_ms: int = Field(ge=250, le=2000, description="Audio in ms kept from before the onset of speech")


class AsrSection(Section):
    """Speech recognition."""

    model: str = Field(description="Model of role asr; see: vivavoce models list")
    threads: Threads = Field(description="Threads")
    partial_ms: int = Field(ge=100, le=5000, description="Shortest time in ms between two partial transcripts")
    soft_cut_s: float = Field(ge=8, le=25, description="Segment length in s from which a pause cuts it")
    hard_cut_s: float = Field(ge=9, le=30, description="Segment length in s at which it is cut at its quietest place")


class LlmSection(Section):
    """The language model."""

    model: str = Field(description="Model of role llm; see: vivavoce models list")
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = Field(
        description="auto: a GPU where one works, else the CPU; cpu; cuda or cuda:N"
    )
    precision: Literal["auto", "fp32", "bf16", "int8"] = Field(
        description="How the weights are held in memory; auto: int8 on the CPU, bf16 on a GPU"
    )
    context_tokens: int = Field(ge=256, le=131072, description="Length of the conversation window in tokens")
    kv_dtype: Literal["auto", "int8", "fp8"] = Field(
        description="How the window is held in memory; auto: as the model computes; int8, fp8: about half of bf16"
    )
    threads: Threads = Field(description="Threads")
    snapshots: bool = Field(
        description="Keep what the model has read of the conversation on disk, so that a new engine need not read it"
    )
    temperature: float = Field(ge=0.0, le=2.0, description="0: always the most likely token")
    top_k: int = Field(ge=0, le=1000, description="Choose among the k most likely tokens; 0: all")
    top_p: float = Field(gt=0.0, le=1.0, description="Choose among the tokens that make up this probability")
    repetition_penalty: float = Field(ge=1.0, le=2.0, description="1: none; greater: fewer repeated words")
    seed: int = Field(ge=0, le=2**31 - 1, description="Start of the random choices; same seed, same answers")


class MemorySection(Section):
    """What is given up while memory is scarce, and taken back later."""

    guard: bool = Field(description="Give memory back while it is scarce, mildest first, and take it back later")
    tight_mb: int = Field(
        ge=0, le=1048576, description="Free memory in MB below which it is scarce; 0: a 32nd of all, 268 to 1074"
    )
    least_context_tokens: int = Field(
        ge=256, le=131072, description="No conversation window is made smaller than this, in tokens"
    )


class TtsSection(Section):
    """The voice."""

    model: str = Field(description="Model of role tts for personas without a voice; see: vivavoce models list")


class Persona(Section):
    """Who speaks: instructions, voice, quota."""

    prompt: str = Field(description="System prompt; empty: the model's own")
    voice: str = Field(description="Model of role tts; empty: tts.model")
    max_reply_tokens: int = Field(ge=8, le=4096, description="Longest reply in tokens")
    max_history_tokens: int = Field(ge=64, le=131072, description="Conversation remembered, in tokens")


class RecoverySection(Section):
    """What happens when a part of the program or a device is lost."""

    one_moment: str = Field(description="Said when the agent needs a moment to recover; empty: nothing is said")
    when_device_lost: Literal["default", "wait"] = Field(
        description="Until a lost device is back: go on with the system's default device, or wait in silence"
    )


class PathsSection(Section):
    """Folders."""

    store: Folder = Field(description="Model store; empty: VIVAVOCE_STORE, else models/ in the user's data folder")
    data: Folder = Field(description="Journals and recordings; empty: the user's data folder")


class UiSection(Section):
    """The window."""

    theme: Literal["light", "dark"] = Field(description="Colours of the window")
    language: Literal["", "en", "zh"] = Field(description="Language of the window; empty: the system's")
    latency_budget_ms: int = Field(
        ge=200, le=10000, description="Time in ms from your last word to the answer's first sound that you find right"
    )


class Config(Section):
    """The whole configuration."""

    persona: str = Field(description="Which of the personas speaks")
    audio: AudioSection
    ear: EarSection
    turn: TurnSection
    asr: AsrSection
    llm: LlmSection
    memory: MemorySection
    tts: TtsSection
    recovery: RecoverySection
    paths: PathsSection
    ui: UiSection
    personas: dict[str, Persona] = Field(min_length=1, description="The personas by name")

    def active_persona(self) -> Persona:
        """The persona that speaks; loading made sure that it exists."""
        return self.personas[self.persona]
