"""The model of the demo: a real one if an API key is set, else one that follows a script."""

from __future__ import annotations

import ast
import os
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

from langchain.chat_models import init_chat_model
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from belljar.errors import InvalidRequest

# The default model for each API key; AGENT_MODEL overrides it.
_DEFAULTS = {"OPENAI_API_KEY": "openai:gpt-5-mini", "ANTHROPIC_API_KEY": "anthropic:claude-sonnet-4-5"}

#: What the scripted model does for `demo`: three calls that share variables.
DEMO = (
    "primes = [n for n in range(2, 10_000) if all(n % d for d in range(2, int(n**0.5) + 1))]\n"
    "print(len(primes), 'primes, the last is', primes[-1])",
    "from collections import Counter\n"
    "gaps = Counter(b - a for a, b in zip(primes, primes[1:]))\n"
    "gaps.most_common(3)",
    "import matplotlib.pyplot as plt\n"
    "plt.bar(list(gaps), list(gaps.values()))\n"
    "plt.xlabel('distance to the next prime')\n"
    "plt.savefig('/session/artifacts/gaps.png')\n"
    "plt.close()",
)


class Chosen(NamedTuple):
    model: BaseChatModel
    #: For the first lines of output.
    name: str
    is_scripted: bool


def choose() -> Chosen:
    """The model that the environment selects; raises InvalidRequest if it cannot be used."""
    named = os.environ.get("AGENT_MODEL")
    named = named or next((name for key, name in _DEFAULTS.items() if os.environ.get(key)), None)
    if named:
        try:
            return Chosen(init_chat_model(named), named, is_scripted=False)
        except Exception as error:
            # LangChain explains it: a missing package, an unknown provider, a missing key.
            why = str(error).partition("\n")[0]
            raise InvalidRequest(f"the model `{named}` cannot be used: {why}", hint="see AGENT_MODEL") from error
    return Chosen(ScriptedModel(), f"scripted: none of {', '.join([*_DEFAULTS, 'AGENT_MODEL'])} is set", True)


class ScriptedModel(BaseChatModel):
    """Calls `code_sandbox` with the user's text if that is Python; for `demo`, shows three steps."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> ScriptedModel:
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **_: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=_reply(messages))])


def _reply(messages: Sequence[BaseMessage]) -> AIMessage:
    asked = max((index for index, message in enumerate(messages) if isinstance(message, HumanMessage)), default=0)
    wanted = messages[asked].text.strip()
    answers = [message for message in messages[asked + 1 :] if isinstance(message, ToolMessage)]
    steps = DEMO if wanted == "demo" else (wanted,)
    if not _is_python(steps[0]):
        return AIMessage("I only follow a script: type Python and I run it, or `demo` for three steps with an image.")
    if len(answers) < len(steps):
        call = {"name": "code_sandbox", "args": {"code": steps[len(answers)]}, "id": f"call-{secrets.token_hex(4)}"}
        return AIMessage("", tool_calls=[{**call, "type": "tool_call"}])
    return AIMessage("Done: the answers of the sandbox are above.")


def _is_python(text: str) -> bool:
    try:
        # A kernel takes `await` at the top too.
        tree = compile(text, "<you>", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except (SyntaxError, ValueError):
        return text.startswith(("!", "%"))
    return bool(tree.body)
