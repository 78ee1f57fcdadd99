"""What the voice tells of a mood. Nothing measures it yet."""

from __future__ import annotations

from app.viewmodel.base import ViewModel


class Emotion(ViewModel):
    """No event carries an emotion, so nothing ever changes here."""
