"""The model file's own chat template, rendered as Hugging Face does, in a sandbox: templates are untrusted code."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from gpu.errors import GpuError, WeightsError
from gpu.llm.protocol import Message


class ChatTemplate:
    """Messages to prompt text. Holds no state between renderings."""

    def __init__(
        self, source: str | None, *, bos_token: str, eos_token: str, special_tokens: Sequence[str] = ()
    ) -> None:
        """`special_tokens` are removed from the messages' contents, so that no text can forge a turn.

        Raises WeightsError where the file has no template or a broken one.
        """
        if not source:
            raise WeightsError(
                "The model file has no chat template", fix="Use an instruction-tuned (chat) model, not a base model"
            )
        from jinja2 import TemplateSyntaxError
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise WeightsError(f"The chat template is broken ({error})", fix="Fetch the model again") from error
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._special = tuple(token for token in special_tokens if token)

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """Prompt text. GpuError where the template refuses these messages (for instance two user turns in a row)."""
        from jinja2 import TemplateError

        entries = [{"role": message.role, "content": self._clean(message.content)} for message in messages]
        try:
            return self._template.render(messages=entries, add_generation_prompt=add_generation_prompt, **self._tokens)
        except TemplateError as error:
            raise GpuError(
                f"The model's chat template refuses this history: {error}",
                fix="Alternate user and assistant messages, at most one system message first",
            ) from error

    def _clean(self, content: str) -> str:
        for token in self._special:
            content = content.replace(token, "")
        return content


def _raise_exception(message: str) -> Any:
    """The function that templates call to refuse a history."""
    from jinja2 import TemplateError

    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    """The date as some templates ask for it. The day's only, so that a prompt does not change by the minute."""
    return datetime.datetime.now().astimezone().replace(hour=0, minute=0, second=0).strftime(pattern)
