"""Whether a persona leaves room to talk, asked when the language model is there and before a session begins."""

from __future__ import annotations

from app.config.schema import Config
from app.conversation.history import History
from app.errors import AgentError
from gpu.llm.protocol import LanguageModel

_QUESTION_TOKENS = 16
"""A question shorter than this is none."""


def check_persona(config: Config, llm: LanguageModel) -> None:
    """Refuse a persona beside whose prompt and longest reply no question fits into the model's window.

    Raises:
        AgentError: with the persona and the keys.
    """
    persona, name = config.active_persona(), config.persona
    prompt_tokens = llm.count_tokens(History(persona.prompt).messages(""))
    if prompt_tokens + _QUESTION_TOKENS + persona.max_reply_tokens <= llm.context_tokens:
        return
    raise AgentError(
        f"the persona {name} leaves no room for a question: its prompt has {prompt_tokens} tokens and its longest "
        f"reply {persona.max_reply_tokens}, the model's window {llm.context_tokens}",
        fix=f"Raise llm.context_tokens, or shorten personas.{name}.prompt or personas.{name}.max_reply_tokens",
    )
