"""What does the door offer, in OpenAPI 3.1? What FastAPI finds in the routes, and what it cannot see there."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter
from pydantic.json_schema import models_json_schema

from ondol.bodies import EventBody
from ondol.http import examples, routing
from ondol.http.problems import Problem
from ondol.http.requests import StartRun, StartRunForm

_REF = "#/components/schemas/{model}"
#: Headers without which a request is refused (428): they say what its sender saw.
_REQUIRED = {("change_session", "If-Match"), ("erase_session", "If-Match"), ("decide_ask", "If-Match")}
_PATTERNS = {
    "Idempotency-Key": r'^(?:"(?:[ !#-\[\]-~]|\\["\\]){1,200}"|[!#-~](?:[ -~]{0,198}[!-~])?)$',
    "If-Match": r'^"[0-9]{1,15}"$',
}
#: Where the id of a thing that an answer holds leads to.
_LINKS: dict[tuple[str, str], tuple[str, str, list[str]]] = {
    ("start_run", "202"): (
        "run",
        "id",
        ["get_run", "get_result", "watch_run", "get_steps", "cancel_run", "resume_run"],
    ),
    ("list_runs", "200"): ("run", "items/0/id", ["get_run", "get_context", "replay_run", "fork_run", "export_run"]),
    ("make_session", "201"): ("session", "id", ["get_session", "read_messages", "start_in_session"]),
    ("list_asks", "200"): ("ask", "items/0/id", ["get_ask", "decide_ask"]),
    ("list_effects", "200"): ("effect", "items/0/id", ["get_effect", "resolve_effect"]),
}


def describe(api: FastAPI) -> dict[str, Any]:
    described = get_openapi(
        title=api.title, version=api.version, description=api.description, routes=routing.described(api.routes),
        openapi_version="3.1.0",
    )  # fmt: skip
    schemas = described.setdefault("components", {}).setdefault("schemas", {})
    _, more = models_json_schema([(m, "validation") for m in (StartRun, StartRunForm)], ref_template=_REF)
    schemas["EventBody"] = TypeAdapter(EventBody).json_schema(ref_template=_REF)
    problem = TypeAdapter(Problem).json_schema(ref_template=_REF)
    schemas |= more["$defs"] | problem.pop("$defs", {})
    schemas["Problem"] = problem
    for operations in described["paths"].values():
        for operation in operations.values():
            _describe_parameters(operation)
            _add_links(operation)
            examples.add_to(operation)
    described["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    described["security"] = [{"token": []}, {}]
    return described


def _describe_parameters(operation: dict[str, Any]) -> None:
    for parameter in operation.get("parameters", ()):
        name, schema = parameter["name"], parameter["schema"]
        if "anyOf" in schema:  # one that may be left out; there is no null in an address or in a header
            given = [s for s in schema.pop("anyOf") if s != {"type": "null"}]
            schema |= given[0] if len(given) == 1 else {"anyOf": given}
        if name in _PATTERNS:
            schema["pattern"] = _PATTERNS[name]
        if (operation["operationId"], name) in _REQUIRED:
            parameter["required"] = True
        if operation["operationId"] == "decide_ask" and name == "If-Match":
            schema["pattern"] = r'^"[^"]{1,200}"$'


def _add_links(operation: dict[str, Any]) -> None:
    for (name, status), (parameter, place, targets) in _LINKS.items():
        if operation["operationId"] == name:
            operation["responses"][status]["links"] = {
                target: {"operationId": target, "parameters": {parameter: f"$response.body#/{place}"}}
                for target in targets
            }
