-- Version 9. Adds only; each part under a line that says what for.

-- Model calls outside of any run, and what each took by model (JSON, see `usage.py`). It outlives its session.
CREATE TABLE spent (
  tenant TEXT COLLATE "C" NOT NULL REFERENCES tenants (tenant),
  id TEXT COLLATE "C" NOT NULL,
  agent TEXT COLLATE "C" NOT NULL,                -- whose model was asked
  session TEXT COLLATE "C" NOT NULL,
  user_id TEXT COLLATE "C" NOT NULL,              -- '' where the session is of nobody in particular
  at BIGINT NOT NULL,
  usage TEXT COLLATE "C" NOT NULL,
  PRIMARY KEY (tenant, id)
);
