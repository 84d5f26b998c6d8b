"""What is looked at, and written, when a run is replayed?"""

from __future__ import annotations

from ondol import messages
from ondol.messages import Attachment
from ondol.records import EffectRow, RunRow
from ondol.replay import Family, Member
from ondol.transactions.pieces import checked_body, run_row
from ondol.transactions.statements import Tx


def read_family(tenant: str, run_id: str) -> Tx[Family]:
    """The run with its whole family. Raises NotFound; StoreCorrupt if its input does not match its checksum."""
    key = {"tenant": tenant, "run": run_id}
    rows, inputs = yield [("run.get", key), ("message.one", key | {"ordinal": 1})]
    run = run_row(rows, run_id)
    of_family = {"tenant": tenant, "family": run.family or run.id}
    body = checked_body(run.id, *inputs[0]) if inputs else None
    attached = [p for p in messages.loads(body).parts if isinstance(p, Attachment)] if body else []
    runs, effects, *blobs = yield [
        ("run.family", of_family),
        ("effect.of_family", of_family),
        *(("blob.get", {"tenant": tenant, "digest": a.digest}) for a in attached),
    ]
    done = [EffectRow(*r) for r in effects]
    members = [Member(RunRow(*row), bool(kept), tuple(e for e in done if e.run == row[1])) for *row, kept in runs]
    return Family(run, tuple(members), body, tuple(a.name for a, b in zip(attached, blobs, strict=True) if not b))
