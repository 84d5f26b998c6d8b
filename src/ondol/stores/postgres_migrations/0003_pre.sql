-- Version 3. Adds only; each part under a line that says what for.

-- What models are shown of a session: how far back what, and the summary of the rest (JSON, see `view.py`).
ALTER TABLE sessions ADD COLUMN seen TEXT COLLATE "C";
ALTER TABLE sessions ADD COLUMN seen_sum BIGINT;
-- Texts that hold for the whole session (JSON).
ALTER TABLE sessions ADD COLUMN pins TEXT COLLATE "C";
ALTER TABLE sessions ADD COLUMN pins_sum BIGINT;

-- Every change of what models are shown of a session: a fork takes the one of its own past.
CREATE TABLE compactions (
  n BIGINT GENERATED ALWAYS AS IDENTITY,
  tenant TEXT COLLATE "C" NOT NULL,
  session TEXT COLLATE "C" NOT NULL,
  made BIGINT NOT NULL,               -- the session's message sequence when it was made
  seen TEXT COLLATE "C" NOT NULL,
  sum BIGINT NOT NULL,
  PRIMARY KEY (tenant, n),
  FOREIGN KEY (tenant, session) REFERENCES sessions (tenant, id)
);
CREATE INDEX compactions_session ON compactions (tenant, session, made);

-- What the runtime carries in requests, word for word, by its digest. Contexts name it.
CREATE TABLE carried (
  tenant TEXT COLLATE "C" NOT NULL,
  session TEXT COLLATE "C" NOT NULL,
  digest TEXT COLLATE "C" NOT NULL,
  body TEXT COLLATE "C" NOT NULL,
  PRIMARY KEY (tenant, session, digest),
  FOREIGN KEY (tenant, session) REFERENCES sessions (tenant, id)
);
CREATE INDEX carried_digest ON carried (tenant, digest);
