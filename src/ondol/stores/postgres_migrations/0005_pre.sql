-- Version 5. Adds only; each part under a line that says what for.

-- The texts of a history or of a collection, by their number in the space. A message is found by its run and ordinal; a
-- passage of a document has its text here.
CREATE TABLE search_texts (
  tenant TEXT COLLATE "C" NOT NULL,
  space BIGINT NOT NULL,
  doc BIGINT NOT NULL,
  source TEXT COLLATE "C" NOT NULL,   -- the run, or the document with its version
  place BIGINT NOT NULL,              -- the ordinal, or the line or page
  body TEXT COLLATE "C",              -- JSON; NULL: the message has it
  PRIMARY KEY (tenant, space, doc)
);
CREATE INDEX search_texts_source ON search_texts (tenant, source, space);

-- What is in a collection. `source` names the texts of the version that is found.
CREATE TABLE documents (
  tenant TEXT COLLATE "C" NOT NULL REFERENCES tenants (tenant),
  space BIGINT NOT NULL,
  path TEXT COLLATE "C" NOT NULL,
  source TEXT COLLATE "C" NOT NULL,
  digest TEXT COLLATE "C" NOT NULL,
  indexed_at BIGINT NOT NULL,
  PRIMARY KEY (tenant, space, path)
);
CREATE INDEX documents_source ON documents (tenant, space, source);
