-- Version 12. Adds only; each part under a line that says what for.

-- Is some of what was said before a session goes on erased? It may be of a session that the one before it goes on from.
ALTER TABLE sessions ADD COLUMN orphaned BIGINT NOT NULL DEFAULT 0;
-- A deleted session goes on from none, should it begin anew.
UPDATE sessions SET parent = NULL, parent_until = NULL WHERE deleted_at IS NOT NULL AND parent_until IS NOT NULL;
WITH RECURSIVE below (tenant, id) AS (
  SELECT tenant, id FROM sessions WHERE parent IS NULL AND parent_until > 0
  UNION SELECT s.tenant, s.id FROM sessions s JOIN below b ON s.tenant = b.tenant AND s.parent = b.id
)
UPDATE sessions SET orphaned = 1 WHERE (tenant, id) IN (SELECT tenant, id FROM below);
