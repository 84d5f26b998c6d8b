-- Version 2. Adds only; each part under a line that says what for.

-- Tokens of the HTTP door. Found by their hash alone: it is the token that says whose tenant it is.
CREATE TABLE tokens (
  tenant TEXT COLLATE "C" NOT NULL REFERENCES tenants (tenant),
  id TEXT COLLATE "C" NOT NULL,
  hash TEXT COLLATE "C" NOT NULL,     -- SHA-256 of the token, hex; the token itself is kept nowhere
  name TEXT COLLATE "C" NOT NULL,     -- who acts with it, in the record of human acts
  user_id TEXT COLLATE "C",           -- it sees and does only what is this user's; NULL: whatever is the tenant's
  scopes TEXT COLLATE "C" NOT NULL,   -- of run, read, answer, admin; with spaces between
  created_at BIGINT NOT NULL,
  expires_at BIGINT,
  revoked_at BIGINT,
  PRIMARY KEY (tenant, id)
);
CREATE UNIQUE INDEX tokens_hash ON tokens (hash);

-- Whose session it is: the user of the request that made it; NULL: of nobody in particular.
ALTER TABLE sessions ADD COLUMN user_id TEXT COLLATE "C";
UPDATE sessions SET user_id = (
  SELECT nullif(r.user_id, '') FROM runs r WHERE r.tenant = sessions.tenant AND r.session = sessions.id ORDER BY n LIMIT 1
);
CREATE INDEX sessions_of_user ON sessions (tenant, user_id, id) WHERE deleted_at IS NULL;

-- What the caller noted with a run (JSON); no rule looks at it.
ALTER TABLE runs ADD COLUMN metadata TEXT COLLATE "C";
