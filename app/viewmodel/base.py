"""What every view model is: a function of the events so far, with a number that says when it changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app import events


class ViewModel:
    """Takes every event on one thread. `revision` grows with each change that a widget could show."""

    def __init__(self) -> None:
        self.revision = 0

    def take(self, event: events.Event) -> None:
        """Any event; a subclass looks at those that concern it and calls `changed`."""

    def changed(self) -> None:
        """Something that is shown is different now."""
        self.revision += 1


class Hub:
    """Hands every event to every view model: one event, one truth for all panels."""

    def __init__(self, models: Sequence[ViewModel], on_failure: Callable[[ViewModel, Exception], None]) -> None:
        """`on_failure` is told of a view model that raised; it gets no more events, and the others do."""
        self._models = list(models)
        self._on_failure = on_failure

    def take(self, event: events.Event) -> None:
        """See `ViewModel`."""
        for model in self._models[:]:
            try:
                model.take(event)
            except Exception as error:  # a bug of one panel's must not take the conversation with it
                self._models.remove(model)
                self._on_failure(model, error)

    def add(self, model: ViewModel) -> None:
        """One more, from the next event on."""
        self._models.append(model)
