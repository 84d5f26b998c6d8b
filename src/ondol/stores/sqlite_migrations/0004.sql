-- Version 4. Adds only; each part under a line that says what for. The store for PostgreSQL has the same columns and
-- tables, in its own migration.

-- What models are shown of a session: how far back what, and the summary of the rest (JSON, see `view.py`).
ALTER TABLE sessions ADD COLUMN seen TEXT;
ALTER TABLE sessions ADD COLUMN seen_sum INTEGER;
-- Texts that hold for the whole session (JSON).
ALTER TABLE sessions ADD COLUMN pins TEXT;
ALTER TABLE sessions ADD COLUMN pins_sum INTEGER;

-- Every change of what models are shown of a session: a fork takes the one of its own past.
CREATE TABLE compactions (
  n INTEGER PRIMARY KEY,
  tenant TEXT NOT NULL,
  session TEXT NOT NULL,
  made INTEGER NOT NULL,              -- the session's message sequence when it was made
  seen TEXT NOT NULL,
  sum INTEGER NOT NULL,
  FOREIGN KEY (tenant, session) REFERENCES sessions (tenant, id)
);
CREATE INDEX compactions_session ON compactions (tenant, session, made);

-- What the runtime carries in requests, word for word, by its digest. Contexts name it.
CREATE TABLE carried (
  tenant TEXT NOT NULL,
  session TEXT NOT NULL,
  digest TEXT NOT NULL,
  body TEXT NOT NULL,
  PRIMARY KEY (tenant, session, digest),
  FOREIGN KEY (tenant, session) REFERENCES sessions (tenant, id)
) WITHOUT ROWID;
CREATE INDEX carried_digest ON carried (tenant, digest);
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
  ('compactions', 'compactions_session', '10000 10000 5 1'),
  ('carried', 'carried', '10000 10000 5 1'),
  ('carried', 'carried_digest', '10000 10000 1');
