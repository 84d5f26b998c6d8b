-- Version 11. Adds only; each part under a line that says what for.

-- Model calls outside of any run, and what each took by model (JSON, see `usage.py`). It outlives its session.
CREATE TABLE spent (
  tenant TEXT NOT NULL REFERENCES tenants (tenant),
  id TEXT NOT NULL,
  agent TEXT NOT NULL,                -- whose model was asked
  session TEXT NOT NULL,
  user_id TEXT NOT NULL,              -- '' where the session is of nobody in particular
  at INTEGER NOT NULL,
  usage TEXT NOT NULL,
  PRIMARY KEY (tenant, id)
) WITHOUT ROWID;
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES ('spent', 'spent', '10000 10000 1');
