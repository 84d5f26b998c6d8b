"""Write ``docs/openapi.json`` and ``docs/http.md`` from the HTTP door as it is: ``python scripts/reference.py``.

A test fails when they are not as this would write them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ondol import Runtime
from ondol.errors import CODES
from ondol.http.problems import STATUS

DOCS = Path(__file__).parents[1] / "docs"

_INTRO = """# HTTP reference

Made from [openapi.json](openapi.json) (OpenAPI 3.1), which every server also gives at `/openapi.json` and
`ondol openapi` prints. [Streaming](streaming.md) says how events are read, [Deploying](deploying.md) how a server is
run, [Security](security.md) who may come in.

Bodies are JSON. What JSON lacks (a `Decimal`, a date, bytes) has a tag, as everywhere in Ondol. Lists come in pages:
`items`, and `next`, the cursor of the page behind it. A slash in an id is sent as `%2F`.

| header | |
|---|---|
| `Authorization: Bearer TOKEN` | who asks; on this machine it may be left out |
| `Idempotency-Key` | the operation's id, quoted or bare. The same again is the same run; without one it is made and returned |
| `If-Match` | what the sender saw: the `ETag` of a session (its revision), the `arguments_hash` of an ask. 428 without, 412 where it moved on |
| `Prefer: wait=N` | the answer comes when the run has ended, or after N seconds |
| `Prefer: respond-async` | 202 at once, and with a stream: the run goes on when its client goes away |
| `Accept: text/event-stream` | the answer is the stream of the run |
| `Ondol-On-Disconnect` | (answer) `cancel`: this stream owns the run, and takes it with it; `continue`: it only watches |
| `Idempotent-Replayed: true` | (answer) the operation was completed before; these are the same bytes |
"""


def described() -> dict[str, Any]:
    return Runtime("sqlite:///unused.db").asgi().openapi()


def openapi_text(described: dict[str, Any]) -> str:
    return json.dumps(described, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def reference_text(described: dict[str, Any]) -> str:
    lines = [_INTRO]
    by_tag: dict[str, list[str]] = {}
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            by_tag.setdefault(operation["tags"][0], []).append(_route(method.upper(), path, operation))
    for tag, routes in by_tag.items():
        lines += [f"## {tag[0].upper()}{tag[1:]}", "", *routes]
    lines += ["## Bodies", ""]
    for name, schema in sorted(described["components"]["schemas"].items()):
        lines += _schema(name, schema)
    lines += [
        "## Errors", "",
        "Every answer that is no success is a problem (RFC 9457): `code`, `detail` (what, and the next move) and `fix`.",
        "Only a browser that asks for a page of the console (`Accept: text/html`) is told the same as a page.",
        "", "| status | code | what to do |", "|---|---|---|",
    ]  # fmt: skip
    for code, status in sorted(STATUS.items(), key=lambda item: (item[1], item[0])):
        lines.append(f"| {status} | [`{code}`](errors/{code}.md) | {CODES[code].replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def _route(method: str, path: str, operation: dict[str, Any]) -> str:
    lines = [f"### {method} {path}", "", operation["description"], ""]
    given = [p for p in operation.get("parameters", ()) if p["in"] != "path"]
    if given:
        lines += ["| parameter | in | type | |", "|---|---|---|---|"]
        for p in given:
            required = " (required)" if p.get("required") else ""
            said = p.get("description", "") + required
            lines.append(f"| `{p['name']}` | {p['in']} | {_type(p['schema'])} | {_cell(said)} |")
        lines.append("")
    if "requestBody" in operation:
        kinds = [f"{_type(c['schema'])} (`{media}`)" for media, c in operation["requestBody"]["content"].items()]
        lines += [f"Body: {', '.join(kinds)}", ""]
        for example in operation["requestBody"]["content"]["application/json"].get("examples", {}).values():
            shown = json.dumps(example["value"], ensure_ascii=False)
            lines += [f"{example['summary'].capitalize()}:", "", "```json", shown, "```", ""]
    for status, answer in operation["responses"].items():
        if status[0] == "2":
            kinds = [
                _type(c["schema"]) if media == "application/json" else f"`{media}`"
                for media, c in answer.get("content", {}).items()
            ]
            lines.append(f"- {status}: {', '.join(dict.fromkeys(kinds)) or 'nothing'}")
    return "\n".join([*lines, ""])


def _schema(name: str, schema: dict[str, Any]) -> list[str]:
    lines = [f"### {name}", ""]
    if said := schema.get("description"):
        lines += [" ".join(said.replace("``", "`").split()), ""]
    if properties := schema.get("properties"):
        lines += ["| field | type | |", "|---|---|---|"]
        needed = schema.get("required", ())
        for field, of in properties.items():
            said = " ".join(of.get("description", "").replace("``", "`").split())
            note = said or ("" if field in needed else "may be left out")
            lines.append(f"| `{field}` | {_type(of)} | {_cell(note)} |")
        lines.append("")
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{re.sub(r'[^a-z0-9]', '', name.lower())})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(s) for s in schema["anyOf"]))
    if "enum" in schema:
        return " ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    match schema.get("type"):
        case "array":
            return f"list of {_type(schema.get('items', {}))}"
        case "object" if isinstance(more := schema.get("additionalProperties"), dict) and more:
            return f"object of {_type(more)}"
        case None:
            return "any"
        case kind:
            return str(kind)


if __name__ == "__main__":
    door = described()
    (DOCS / "openapi.json").write_text(openapi_text(door))
    (DOCS / "http.md").write_text(reference_text(door))
