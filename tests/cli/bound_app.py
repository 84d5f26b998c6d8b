"""An agent whose runtime has a policy and limits. It is alone here: an app with one runtime is run on that."""

from __future__ import annotations

from ondol import Agent, Deny, Limits, Runtime, tool
from ondol.testing import ScriptedModel, call


@tool(effect="read")
def greet(name: str) -> str:
    """Greet somebody."""
    return f"hello {name}"


bound = Agent("bound", model=ScriptedModel([call("greet", name="kim"), "done"]), tools=[greet])
strict = Runtime("sqlite:///bound.db", agents=[bound], policy=lambda wanted: Deny("not here"), limits=Limits(steps=1))
