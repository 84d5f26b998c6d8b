-- Version 3. Adds only; each part under a line that says what for.

-- Tokens of the HTTP door. Found by their hash alone: it is the token that says whose tenant it is.
CREATE TABLE tokens (
  tenant TEXT NOT NULL,
  id TEXT NOT NULL,
  hash TEXT NOT NULL,                 -- SHA-256 of the token, hex; the token itself is kept nowhere
  name TEXT NOT NULL,                 -- who acts with it, in the record of human acts
  user_id TEXT,                       -- it sees and does only what is this user's; NULL: whatever is the tenant's
  scopes TEXT NOT NULL,               -- of run, read, answer, admin; with spaces between
  created_at INTEGER NOT NULL,
  expires_at INTEGER,
  revoked_at INTEGER,
  PRIMARY KEY (tenant, id)
) WITHOUT ROWID;
CREATE UNIQUE INDEX tokens_hash ON tokens (hash);
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
  ('tokens', 'tokens', '100 100 1'),
  ('tokens', 'tokens_hash', '100 1');

-- Whose session it is: the user of the request that made it; NULL: of nobody in particular.
ALTER TABLE sessions ADD COLUMN user_id TEXT;
UPDATE sessions SET user_id = (
  SELECT nullif(user_id, '') FROM runs r WHERE r.tenant = sessions.tenant AND r.session = sessions.id ORDER BY n LIMIT 1
);
CREATE INDEX sessions_of_user ON sessions (tenant, user_id, id) WHERE deleted_at IS NULL;
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES ('sessions', 'sessions_of_user', '1000 1000 10 1');

-- What the caller noted with a run (JSON); no rule looks at it.
ALTER TABLE runs ADD COLUMN metadata TEXT;
