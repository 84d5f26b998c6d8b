-- Version 4. Adds only; each part under a line that says what for.

-- What is searched together: a memory, the history of a session or of a user, a collection of documents. `docs` counts
-- the texts, `next_doc` numbers them.
CREATE TABLE search_spaces (
  n BIGINT GENERATED ALWAYS AS IDENTITY,
  tenant TEXT COLLATE "C" NOT NULL REFERENCES tenants (tenant),
  kind TEXT COLLATE "C" NOT NULL,                 -- memory, session, user, documents
  agent TEXT COLLATE "C" NOT NULL,                -- '' where it is of no agent
  user_id TEXT COLLATE "C" NOT NULL,              -- '' where it is of no user
  name TEXT COLLATE "C" NOT NULL,                 -- of the session or of the collection, else ''
  docs BIGINT NOT NULL,
  next_doc BIGINT NOT NULL,
  indexed BIGINT NOT NULL DEFAULT 0,  -- of a history: all runs up to this place in the order of acceptance are in it
  PRIMARY KEY (tenant, n)
);
CREATE UNIQUE INDEX search_spaces_key ON search_spaces (tenant, kind, agent, user_id, name);

-- Which texts hold a term, and what it counts there; see `terms.py` and `ranking.py`.
CREATE TABLE postings (
  tenant TEXT COLLATE "C" NOT NULL,
  space BIGINT NOT NULL,
  term TEXT COLLATE "C" NOT NULL,
  doc BIGINT NOT NULL,
  weight BIGINT NOT NULL,
  PRIMARY KEY (tenant, space, term, doc)
);

-- What agents remember. A fact is a text of its space.
CREATE TABLE facts (
  tenant TEXT COLLATE "C" NOT NULL REFERENCES tenants (tenant),
  space BIGINT NOT NULL,
  doc BIGINT NOT NULL,
  id TEXT COLLATE "C" NOT NULL,
  agent TEXT COLLATE "C" NOT NULL,                -- '' where all agents of the tenant share it
  user_id TEXT COLLATE "C" NOT NULL,
  body TEXT COLLATE "C" NOT NULL,                 -- the text, as JSON
  sum BIGINT NOT NULL,
  hash TEXT COLLATE "C" NOT NULL,                 -- of the text in its normal form: the same fact is kept once
  untrusted BIGINT NOT NULL,         -- the run that it comes from saw content from outside
  run TEXT COLLATE "C",                           -- that it comes from; NULL: a person wrote it
  author TEXT COLLATE "C" NOT NULL,               -- who wrote it last by hand; '' for what a run wrote
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  expires_at BIGINT,
  PRIMARY KEY (tenant, space, doc)
);
CREATE UNIQUE INDEX facts_id ON facts (tenant, id);
CREATE UNIQUE INDEX facts_once ON facts (tenant, agent, user_id, hash);
CREATE INDEX facts_expiring ON facts (tenant, expires_at) WHERE expires_at IS NOT NULL;
