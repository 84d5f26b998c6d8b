"""What do users test their own agents with?

``ScriptedModel`` answers from a script, ``Downstream`` counts what really happened, ``ManualClock`` moves by hand,
``FaultPlan`` says what goes wrong where, ``Process`` runs what may be killed.
"""

from ondol.providers.script import ScriptedModel, call, error, text, truncated
from ondol.testing.clock import ManualClock
from ondol.testing.downstream import Downstream, DownstreamFailed, EffectLine
from ondol.testing.faults import (
    Barrier,
    FaultPlan,
    FaultyModel,
    FaultyStore,
    afault_point,
    barrier,
    delay,
    fault_point,
    kill,
    raise_,
    stop,
)
from ondol.testing.processes import Process

__all__ = [
    "Barrier",
    "Downstream",
    "DownstreamFailed",
    "EffectLine",
    "FaultPlan",
    "FaultyModel",
    "FaultyStore",
    "ManualClock",
    "Process",
    "ScriptedModel",
    "afault_point",
    "barrier",
    "call",
    "delay",
    "error",
    "fault_point",
    "kill",
    "raise_",
    "stop",
    "text",
    "truncated",
]
