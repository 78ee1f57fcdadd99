"""The complaints that fill other voice agents' trackers, and the test that reproduces each of them here.

A row is a bug report that somebody else's product got. Numbers are those of our survey of such reports; rows
that cannot be reproduced without hardware or another system are left out.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_FAULTS = "app/conversation/test_reported_faults.py"
_ECHO = "app/conversation/test_reported_echo_faults.py"
_DEVICES = "audio/io/test_reported_device_faults.py"


@dataclass(frozen=True, slots=True)
class Symptom:
    """`tests` are node ids under `tests/`; `later` names the issue that brings what the row is about."""

    number: int
    reported: str
    symptom: str
    tests: Sequence[str] = ()
    later: str = ""


SYMPTOMS = (
    Symptom(1, "livekit/agents#315", "answers its own voice above some volume", (
        f"{_ECHO}::test_it_does_not_answer_its_own_voice_at_any_volume",
        "audio/ear/test_interruptions.py::test_the_agent_alone_never_interrupts_itself")),
    Symptom(2, "dnhkng/GLaDOS#38", "talks to itself in an endless loop", (
        f"{_ECHO}::test_it_does_not_talk_to_itself_in_an_endless_loop",)),
    Symptom(3, "pipecat#3062", "bot audio is transcribed as the user", (
        "app/conversation/test_turn_machine.py::"
        "test_bot_audio_in_the_echo_tail_is_not_taken_for_the_user_who_is_heard_in_it",)),
    Symptom(4, "livekit/client-sdk-js#1646", "echo is heard at the start of a call", (
        f"{_ECHO}::test_it_does_not_answer_its_own_voice_at_any_volume",
        f"{_ECHO}::test_at_the_start_of_a_call_a_user_interrupts_through_the_echo")),
    Symptom(5, "pipecat#4151", "keeps talking after an interruption", (
        "app/conversation/test_agent.py::"
        "test_bot_does_not_keep_talking_after_an_interruption_and_history_holds_the_heard_words",
        "audio/io/test_callback.py::test_nothing_of_a_stale_generation_sounds_after_one_fade_block")),
    Symptom(6, "livekit/agents#4039", "after \"mhmm\" the speech stops for good", (
        f"{_FAULTS}::test_mhmm_becomes_no_turn_and_what_was_heard_before_it_is_kept",
        f"{_FAULTS}::test_after_mhmm_the_speech_goes_on"), later="G"),
    Symptom(9, "livekit/agents#3418", "\"speaking\", but silent", (
        f"{_FAULTS}::test_state_is_not_speaking_while_nothing_sounds",)),
    Symptom(11, "livekit/agents#5038", "an interrupted reply is missing from the history", (
        f"{_FAULTS}::test_reply_interrupted_in_its_first_20_ms_is_not_missing_from_the_history",
        f"{_FAULTS}::test_reply_that_begins_together_with_the_user_is_not_missing_from_the_history")),
    Symptom(12, "livekit/agents#4219", "a sentence is spoken twice", (
        f"{_FAULTS}::test_a_transcript_revised_seven_times_is_answered_once",
        "app/conversation/test_agent.py::test_no_sentence_is_spoken_twice_when_the_user_goes_on_before_the_answer")),
    Symptom(14, "pipecat#4279", "a short word is silently dropped", (
        f"{_FAULTS}::test_a_short_word_is_not_dropped_because_its_transcript_is_late",)),
    Symptom(15, "pipecat#4098", "the turn stalls", (
        f"{_FAULTS}::test_turn_does_not_stall_when_the_timeout_is_before_the_transcript",)),
    Symptom(17, "pipecat#3375", "the turn model's audio is cut at its start", (
        f"{_FAULTS}::test_first_words_are_not_cut_from_what_the_turn_model_hears",)),
    Symptom(18, "moeru-ai/airi#2092", "first syllables are lost", (
        f"{_FAULTS}::test_first_syllables_are_not_lost_to_the_recogniser",
        f"{_ECHO}::test_first_syllables_of_a_recording_are_not_lost")),
    Symptom(19, "moeru-ai/airi#2092", "the sensitivity slider does nothing", later="D"),
    Symptom(20, "RealtimeSTT#276", "invalid sample rate, silently another microphone", (
        f"{_DEVICES}::test_invalid_sample_rate_takes_another_rate_and_no_other_microphone",
        f"{_DEVICES}::test_invalid_sample_rate_everywhere_is_told_and_no_other_microphone_taken")),
    Symptom(21, "mistral-vibe#806", "garbled or chipmunk voice", (
        "app/conversation/test_output.py::test_voice_is_neither_garbled_nor_a_chipmunk_on_a_device_of_another_rate",)),
    Symptom(22, "pipecat#2070", "buzz every 10 ms", (
        "audio/test_resample.py::test_no_buzz_every_10_ms_hops_agree_with_the_whole_file",
        "audio/test_resample.py::test_no_buzz_at_chunks_of_any_size_they_equal_the_whole")),
    Symptom(24, "RealtimeTTS#322", "underruns, choppy (in part: the figure is `bench audio`'s)", (
        "app/bench/test_audio_bench.py::test_underruns_and_chops_on_the_rig_are_what_the_monitor_heard",)),
    Symptom(25, "voicemode#342", "crackle that grows (in part: the hours are `bench soak`'s)", (
        "audio/io/test_drift_mapper.py::test_no_crackle_grows_in_five_minutes_and_the_queue_stays_as_it_was",)),
    Symptom(27, "sounddevice#125", "frozen device list, stale index, wrong speaker", (
        f"{_DEVICES}::test_device_list_is_not_frozen_at_the_start_and_no_stale_index_means_the_wrong_speaker",
        "audio/io/test_find_device.py::test_stale_index_the_same_card_under_another_number_is_found")),
    Symptom(28, "banshee#51", "records nothing and no error", (
        "audio/io/test_pulse_watcher.py::test_records_nothing_and_no_error_because_suspended",
        "audio/meters/test_signal_presence.py::"
        "test_records_nothing_and_no_error_is_told_once_after_five_seconds_and_once_when_it_is_back",
        "audio/io/test_split_device.py::test_a_loudspeaker_that_asks_no_more_ends_the_device",
        "app/engine/test_device_keeper.py::"
        "test_meanwhile_the_default_is_used_and_the_named_one_again_when_it_is_back")),
    Symptom(29, "mumble#3491", "opening the Bluetooth microphone makes everything muffled (the policy)", (
        "audio/io/test_bluetooth.py::"
        "test_opening_the_bluetooth_microphone_makes_everything_muffled_so_it_is_warned_of",
        "audio/io/test_bluetooth.py::test_by_default_another_microphone_is_preferred_to_the_headsets")),
    Symptom(30, "RealtimeSTT#143", "\"thank you\" from silence", (
        "app/conversation/test_agent.py::test_thank_you_from_silence_is_no_turn",
        "audio/ear/test_ear.py::test_silence_and_noise_make_no_run")),
    Symptom(31, "hermes-agent#78477", "a Chinese reply is never split", (
        "audio/text/test_clauses.py::test_a_chinese_reply_is_split_at_its_first_terminator",)),
    Symptom(32, "speech-to-speech#338", "reads asterisks, emoji and laughs aloud", (
        f"{_FAULTS}::test_asterisks_emoji_and_laughs_are_not_read_aloud",)),
    Symptom(33, "livekit/agents#589", "the model thinks all was heard; two user turns in a row", (
        f"{_FAULTS}::test_model_does_not_think_all_was_heard_nor_see_two_user_turns_in_a_row",)),
    Symptom(35, "pipecat#3750", "memory grows, tasks leak", (
        f"{_FAULTS}::test_memory_and_threads_do_not_grow_with_conversations_that_are_broken_off",)),
    Symptom(37, "moshi#54", "out of memory on 8 to 16 GB", (
        "gpu/memory/test_preflight.py::test_verdicts_by_hand",
        "app/cli/test_plan.py::test_an_engine_starts_on_the_gpu_or_falls_back_or_is_refused",
        "gpu/memory/test_pressure.py::test_mildest_first_one_at_a_time_and_back_in_reverse")),
    Symptom(38, "MiniCPM-o-Demo#49", "the session ends when the cache is full", (
        "app/conversation/test_agent.py::test_old_exchanges_leave_when_the_quota_is_full",
        "app/conversation/test_long_messages.py::"
        "test_a_message_that_is_longer_than_the_window_is_answered_and_so_is_the_next_one",
        "gpu/kv/test_window.py::test_a_long_stream_of_chunks_and_rollbacks")),
    Symptom(39, "personaplex#3", "choppy, because a step takes longer than its frame", later="H"),
    Symptom(40, "moshi 0.2.13", "22 s first step on the CPU, crash without a compiler", later="H"),
    Symptom(41, "moshi 0.2.13", "wrong output once the ring is full", later="H"),
    Symptom(44, "pyinstaller#4157", "a frozen program spawns itself (the build itself: D)", (
        "app/cli/test_main.py::test_a_frozen_program_does_not_spawn_itself_for_ever_freeze_support_comes_first",
        "app/cli/test_main.py::test_version_is_one_quick_process"), later="D"),
)  # fmt: skip


@cache
def _tests_of(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def test_every_report_that_can_be_reproduced_here_has_a_row() -> None:
    wanted = [*range(1, 7), 9, 11, 12, 14, 15, *range(17, 23), 24, 25, *range(27, 34), 35, *range(37, 42), 44]
    assert [row.number for row in SYMPTOMS] == wanted


@pytest.mark.parametrize("row", SYMPTOMS, ids=lambda row: f"{row.number}: {row.symptom}")
def test_each_row_names_tests_that_exist_or_the_issue_that_brings_them(row: Symptom) -> None:
    assert row.tests or row.later in tuple("CDEFGH")
    for test in row.tests:
        path, name = test.split("::")
        assert name in _tests_of(_ROOT / "tests" / path), test
