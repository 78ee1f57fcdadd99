"""The help texts of the configuration, so that the tool that collects texts for translation finds them.

A test compares them with the schema. `schema_text` looks one up.
"""

from __future__ import annotations

from PySide6.QtCore import QT_TRANSLATE_NOOP, QCoreApplication


def schema_text(text: str) -> str:
    """A help text of the schema in the present language."""
    return QCoreApplication.translate("Schema", text)


TEXTS = (
    QT_TRANSLATE_NOOP("Schema", "Which of the personas speaks"),
    QT_TRANSLATE_NOOP("Schema", "Microphone by name or part of it; empty: the system's default"),
    QT_TRANSLATE_NOOP("Schema", "Loudspeaker by name or part of it; empty: the system's default"),
    QT_TRANSLATE_NOOP("Schema", "Device rate in Hz; 0: the device's own"),
    QT_TRANSLATE_NOOP("Schema", "duplex: one stream; split: two, with their clocks matched; auto: one where it opens"),
    QT_TRANSLATE_NOOP(
        "Schema", "Stages that the signal passes, in order; speech recognition hears the end of the chain"
    ),
    QT_TRANSLATE_NOOP("Schema", "The stage whose output the voice detectors hear; empty: the bare microphone"),
    QT_TRANSLATE_NOOP("Schema", "Model of role vad; see: vivavoce models list"),
    QT_TRANSLATE_NOOP("Schema", "Aggressiveness of the fast voice gate; 3 passes least"),
    QT_TRANSLATE_NOOP("Schema", "Speech probability from which the judge hears speech"),
    QT_TRANSLATE_NOOP("Schema", "Speech probability below which it hears silence; under speech_on"),
    QT_TRANSLATE_NOOP("Schema", "Model of role turn; see: vivavoce models list"),
    QT_TRANSLATE_NOOP("Schema", "Silence in ms after which the end-of-turn model is asked"),
    QT_TRANSLATE_NOOP("Schema", "Its probability from which the turn is over at once"),
    QT_TRANSLATE_NOOP("Schema", "Silence in ms that ends a turn whatever the model says"),
    QT_TRANSLATE_NOOP("Schema", "Speech in ms during a reply that stops the reply"),
    QT_TRANSLATE_NOOP("Schema", "The same in ms while the ear cannot yet tell its own echo from a user"),
    QT_TRANSLATE_NOOP("Schema", "Speech probability that counts as speech during a reply"),
    QT_TRANSLATE_NOOP("Schema", "Audio in ms kept from before the onset of speech"),
    QT_TRANSLATE_NOOP("Schema", "Model of role asr; see: vivavoce models list"),
    QT_TRANSLATE_NOOP("Schema", "Threads"),
    QT_TRANSLATE_NOOP("Schema", "Shortest time in ms between two partial transcripts"),
    QT_TRANSLATE_NOOP("Schema", "Segment length in s from which a pause cuts it"),
    QT_TRANSLATE_NOOP("Schema", "Segment length in s at which it is cut at its quietest place"),
    QT_TRANSLATE_NOOP("Schema", "Model of role llm; see: vivavoce models list"),
    QT_TRANSLATE_NOOP("Schema", "auto: a GPU where one works, else the CPU; cpu; cuda or cuda:N"),
    QT_TRANSLATE_NOOP("Schema", "How the weights are held in memory; auto: int8 on the CPU, bf16 on a GPU"),
    QT_TRANSLATE_NOOP("Schema", "Length of the conversation window in tokens"),
    QT_TRANSLATE_NOOP(
        "Schema", "How the window is held in memory; auto: as the model computes; int8, fp8: about half of bf16"
    ),
    QT_TRANSLATE_NOOP(
        "Schema", "Keep what the model has read of the conversation on disk, so that a new engine need not read it"
    ),
    QT_TRANSLATE_NOOP("Schema", "0: always the most likely token"),
    QT_TRANSLATE_NOOP("Schema", "Choose among the k most likely tokens; 0: all"),
    QT_TRANSLATE_NOOP("Schema", "Choose among the tokens that make up this probability"),
    QT_TRANSLATE_NOOP("Schema", "1: none; greater: fewer repeated words"),
    QT_TRANSLATE_NOOP("Schema", "Start of the random choices; same seed, same answers"),
    QT_TRANSLATE_NOOP("Schema", "Give memory back while it is scarce, mildest first, and take it back later"),
    QT_TRANSLATE_NOOP("Schema", "Free memory in MB below which it is scarce; 0: a 32nd of all, 268 to 1074"),
    QT_TRANSLATE_NOOP("Schema", "No conversation window is made smaller than this, in tokens"),
    QT_TRANSLATE_NOOP("Schema", "Model of role tts for personas without a voice; see: vivavoce models list"),
    QT_TRANSLATE_NOOP("Schema", "Said when the agent needs a moment to recover; empty: nothing is said"),
    QT_TRANSLATE_NOOP(
        "Schema", "Until a lost device is back: go on with the system's default device, or wait in silence"
    ),
    QT_TRANSLATE_NOOP("Schema", "Model store; empty: VIVAVOCE_STORE, else models/ in the user's data folder"),
    QT_TRANSLATE_NOOP("Schema", "Journals and recordings; empty: the user's data folder"),
    QT_TRANSLATE_NOOP("Schema", "Colours of the window"),
    QT_TRANSLATE_NOOP("Schema", "Language of the window; empty: the system's"),
    QT_TRANSLATE_NOOP("Schema", "Time in ms from your last word to the answer's first sound that you find right"),
    QT_TRANSLATE_NOOP("Schema", "System prompt; empty: the model's own"),
    QT_TRANSLATE_NOOP("Schema", "Model of role tts; empty: tts.model"),
    QT_TRANSLATE_NOOP("Schema", "Longest reply in tokens"),
    QT_TRANSLATE_NOOP("Schema", "Conversation remembered, in tokens"),
)
