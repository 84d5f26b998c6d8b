-- Version 14. Adds only; each part under a line that says what for.

-- What a session had until something else was put in its place: a fork or replay of a run has what the run began with.
CREATE TABLE replaced (
  tenant TEXT COLLATE "C" NOT NULL,
  session TEXT COLLATE "C" NOT NULL,
  what TEXT COLLATE "C" NOT NULL,     -- state (by hand; what a commit replaced stands with its run), pins
  place BIGINT NOT NULL,              -- in the session's queue: runs before it began with this, if with nothing older
  body TEXT COLLATE "C",
  sum BIGINT,
  PRIMARY KEY (tenant, session, what, place),
  FOREIGN KEY (tenant, session) REFERENCES sessions (tenant, id)
);
