"""What is written about the tokens of the HTTP door?"""

from __future__ import annotations

from ondol.errors import NotFound
from ondol.records import TokenRow
from ondol.transactions.pieces import act_row
from ondol.transactions.statements import Tx


def keep_token(row: TokenRow, digest: str, by: str, door: str) -> Tx[None]:
    """``digest`` is the SHA-256 of the token, which nobody keeps."""
    yield [("tenant.insert", {"tenant": row.tenant})]
    yield [
        ("token.insert", {
            "tenant": row.tenant, "id": row.id, "hash": digest, "name": row.name, "owner": row.user_id,
            "scopes": row.scopes, "at": row.created_at, "expires_at": row.expires_at,
        }),
        act_row(row.tenant, row.created_at, by, door, "token.create", row.id, f"{row.name}: {row.scopes}"),
    ]  # fmt: skip


def revoke_token(tenant: str, token: str, by: str, door: str, at: int) -> Tx[TokenRow]:
    """From now on it does not count. Again is no error. Raises NotFound."""
    (rows,) = yield [("token.revoke", {"tenant": tenant, "id": token, "at": at})]
    if not rows:
        raise NotFound(f"there is no token {token!r}: 'ondol tokens' lists them")
    row = TokenRow(*rows[0])
    if row.revoked_at == at:
        yield [act_row(tenant, at, by, door, "token.revoke", token, row.name)]
    return row
