"""What the sanitiser takes out, and that every kept character knows where it came from."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audio.text.sanitise import sanitise


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("Plain text, nothing else.", "Plain text, nothing else."),
        ("**bold** *thin* ***both*** __this__ _that_ ~~gone~~", "bold thin both this that gone"),
        ("half **open, and", "half open, and"),
        ("use `print` here", "use print here"),
        ("snake_case and 5 * 3 and 2*3", "snake_case and 5 * 3 and 2*3"),
        ("## Heading", "Heading"),
        ("> quoted", "quoted"),
        ("- item one", "item one"),
        ("* item", "item"),
        ("1. First", "1. First"),
        ("see [the docs](https://a.b/c?d=1) now", "see the docs now"),
        ("![a cat](cat.png) sits", "a cat sits"),
        ("known [1] fact[^2].", "known fact."),
        ("go to https://www.example.com/a/b?c=1.", "go to example dot com."),
        ("www.my-site.org!", "my dash site dot org!"),
        ("write to me@foo.co.uk now", "write to me at foo dot co dot uk now"),
        ("Hi 😀👍🏽 there 🇫🇷!", "Hi there!"),
        ("[laughs] Oh, (sighs) well *smiles warmly* yes.", "Oh, well yes."),
        ("<b>fat</b> a<br>b <!-- no -->", "fat a b"),
        ("1 < 2 and 3 > 2", "1 < 2 and 3 > 2"),
        ("| a | b |", "a, b"),
        ("|---|:--:|", ""),
        ("---", ""),
        ("\\*not thin\\*", "not thin"),
        ("```python\nx = 1\n```", ""),
        ("你好，**世界**。", "你好，世界。"),
        ("20°C and café", "20°C and café"),
        ("a\u200bb\x00c\u00a0 d", "abc d"),
        ("", ""),
    ],
)  # fmt: skip
def test_examples(raw: str, text: str) -> None:
    assert sanitise(raw).text == text


def test_heard_words_cover_the_marks_around_them() -> None:
    raw = "**Big** news 😀, see [the docs](http://x.y)!"
    clean = sanitise(raw)
    assert clean.text == "Big news, see the docs!"
    assert raw[: clean.raw_end(len("Big"))] == "**Big**"
    assert raw[: clean.raw_end(len("Big news,"))] == "**Big** news 😀,"
    assert raw[: clean.raw_end(len(clean.text))] == raw


_TEXT = st.text(
    st.sampled_from("ab 12*_`[]()<>#|-~\\\n.,!:/@😀°你") | st.characters(exclude_categories=["Cs"]), max_size=60
)


@settings(max_examples=400, deadline=None)
@given(_TEXT)
def test_places_rise_and_kept_characters_are_the_raw_ones(raw: str) -> None:
    clean = sanitise(raw)
    assert len(clean.to_raw) == len(clean.text) + 1
    assert clean.to_raw[-1] == len(raw)
    assert list(clean.to_raw) == sorted(clean.to_raw)
    assert all(0 <= place <= len(raw) for place in clean.to_raw)
    assert clean.text == clean.text.strip()
    assert "\n" not in clean.text


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["word", "two", "3.50", "you,", "it's", "end."]), max_size=20))
def test_plain_text_is_untouched(words: list[str]) -> None:
    raw = " ".join(words)
    clean = sanitise(raw)
    assert clean.text == raw
    assert clean.to_raw == tuple(range(len(raw) + 1))
