-- Version 8. Adds only; each part under a line that says what for.

-- What passages of documents mean, where the runtime has an embedder. A passage never changes, and neither does its vector.
CREATE TABLE text_vectors (
  tenant TEXT COLLATE "C" NOT NULL,
  space BIGINT NOT NULL,
  doc BIGINT NOT NULL,
  model TEXT COLLATE "C" NOT NULL,
  vector BYTEA NOT NULL,              -- of length one; 32-bit numbers, the lowest byte first
  PRIMARY KEY (tenant, space, doc)
);
