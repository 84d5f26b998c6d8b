"""Ondol: the durable execution lifecycle under AI agents."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ondol.agent import Agent
    from ondol.blocking import Client as Client  # these two need the extra ``server``, so a star leaves them out
    from ondol.budget import ContextPolicy
    from ondol.client import AsyncClient as AsyncClient
    from ondol.clock import Clock, SystemClock
    from ondol.compacting import Compaction
    from ondol.deliveries import OutboxMessage
    from ondol.embedder import Embedder
    from ondol.errors import (
        AlreadyDecided,
        AskClosed,
        CallFailed,
        FileDamaged,
        InvalidInput,
        ModelError,
        NotDone,
        NotFound,
        NotOpen,
        OndolError,
        OperationExpired,
        OperationMismatch,
        OutcomeUnknown,
        PolicyDenied,
        QueueFull,
        ReadOnly,
        ReplayUnsafe,
        RevisionConflict,
        RunCancelled,
        RunEnded,
        RunExpired,
        RunFailed,
        RunWaiting,
        SessionBusy,
        StoreBusy,
        StoreCorrupt,
        StoreError,
        StoreFull,
        StoreTooNew,
        TooLarge,
    )
    from ondol.events import Event
    from ondol.facts import Fact, MemoryScope
    from ondol.handles import Act, Ahead, Ask, Effect, Lineage, Pin, Run, RunResult, Session, SessionMessage
    from ondol.imported import ImportedRun
    from ondol.indexed import Indexed
    from ondol.limits import Limits
    from ondol.memory import Memory
    from ondol.messages import Attachment, Message, Part, Reasoning, Text, ToolCall, ToolResponse, UnknownPart
    from ondol.model import Answer, Delta, Model, ModelOutput, ModelRequest, ToolSpec
    from ondol.policy import Allow, AskFirst, Deny, PolicyCall, PolicyRules, Rule
    from ondol.replay import By, ReplayEffect, ReplayVerdict
    from ondol.runtime import Runtime
    from ondol.search import Documents, Search, SessionHistory, UserHistory
    from ondol.secret import Secret
    from ondol.seeing import SeenContext
    from ondol.spending import UsageLine
    from ondol.store import Store
    from ondol.tools import CannotTell, Context, Found, Happened, NotHappened, Tool, tool
    from ondol.toolsets import Toolset, toolset
    from ondol.usage import Usage
    from ondol.values import Opaque

__version__ = "0.1.0"

__all__ = [
    "Act", "Agent", "Ahead", "Allow", "AlreadyDecided", "Answer", "Ask", "AskClosed", "AskFirst",
    "Attachment", "By", "CallFailed", "CannotTell", "Clock", "Compaction", "Context", "ContextPolicy", "Delta",
    "Deny", "Documents", "Effect", "Embedder", "Event", "Fact", "FileDamaged", "Found", "Happened",
    "ImportedRun", "Indexed", "InvalidInput", "Limits", "Lineage", "Memory", "MemoryScope", "Message", "Model",
    "ModelError", "ModelOutput", "ModelRequest", "NotDone", "NotFound", "NotHappened", "NotOpen", "OndolError",
    "Opaque", "OperationExpired", "OperationMismatch", "OutboxMessage", "OutcomeUnknown", "Part", "Pin", "PolicyCall",
    "PolicyDenied", "PolicyRules", "QueueFull", "ReadOnly", "Reasoning", "ReplayEffect", "ReplayUnsafe",
    "ReplayVerdict", "RevisionConflict", "Rule", "Run", "RunCancelled", "RunEnded", "RunExpired", "RunFailed",
    "RunResult", "RunWaiting", "Runtime", "Search", "Secret", "SeenContext", "Session", "SessionBusy",
    "SessionHistory", "SessionMessage", "Store", "StoreBusy", "StoreCorrupt", "StoreError", "StoreFull",
    "StoreTooNew", "SystemClock", "Text", "TooLarge", "Tool", "ToolCall", "ToolResponse", "ToolSpec", "Toolset",
    "UnknownPart", "Usage", "UsageLine", "UserHistory", "tool", "toolset",
]  # fmt: skip

#: The modules of those names. They are imported when they are asked for: who needs a tool does not wait for a runtime.
_HOMES = {
    "agent": "Agent",
    "blocking": "Client",
    "budget": "ContextPolicy",
    "client": "AsyncClient",
    "clock": "Clock SystemClock",
    "compacting": "Compaction",
    "deliveries": "OutboxMessage",
    "embedder": "Embedder",
    "errors":
        "AlreadyDecided AskClosed CallFailed FileDamaged InvalidInput ModelError NotDone NotFound NotOpen "
        "OndolError OperationExpired OperationMismatch OutcomeUnknown PolicyDenied QueueFull ReadOnly "
        "ReplayUnsafe RevisionConflict RunCancelled RunEnded RunExpired RunFailed RunWaiting SessionBusy "
        "StoreBusy StoreCorrupt StoreError StoreFull StoreTooNew TooLarge",
    "events": "Event",
    "facts": "Fact MemoryScope",
    "handles": "Act Ahead Ask Effect Lineage Pin Run RunResult Session SessionMessage",
    "imported": "ImportedRun",
    "indexed": "Indexed",
    "limits": "Limits",
    "memory": "Memory",
    "messages": "Attachment Message Part Reasoning Text ToolCall ToolResponse UnknownPart",
    "model": "Answer Delta Model ModelOutput ModelRequest ToolSpec",
    "policy": "Allow AskFirst Deny PolicyCall PolicyRules Rule",
    "replay": "By ReplayEffect ReplayVerdict",
    "runtime": "Runtime",
    "search": "Documents Search SessionHistory UserHistory",
    "secret": "Secret",
    "seeing": "SeenContext",
    "spending": "UsageLine",
    "store": "Store",
    "tools": "CannotTell Context Found Happened NotHappened Tool tool",
    "toolsets": "Toolset toolset",
    "usage": "Usage",
    "values": "Opaque",
}  # fmt: skip
_NEED_SERVER = {"AsyncClient", "Client"}  # the extra
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """A public name, or a module (``ondol.errors``)."""
    if not name.isidentifier() or name.startswith("_"):
        raise AttributeError(f"module 'ondol' has no attribute {name!r}")
    try:
        found = import_module(f"ondol.{_HOME.get(name, name)}")
    except ModuleNotFoundError as error:
        if error.name == f"ondol.{name}":
            raise AttributeError(f"module 'ondol' has no attribute {name!r}") from None
        if name not in _NEED_SERVER:
            raise
        from ondol.errors import InvalidInput

        raise InvalidInput(f"{error.name} is missing: pip install 'ondol[server]'") from error
    if name in _HOME:
        found = getattr(found, name)
        globals()[name] = found  # it is not asked for again
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__} - _NEED_SERVER)
