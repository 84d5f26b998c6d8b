-- Version 7. Adds only; each part under a line that says what for.

-- What facts mean, where the runtime has an embedder. A vector is of the text of that hash, by that model.
CREATE TABLE fact_vectors (
  tenant TEXT COLLATE "C" NOT NULL,
  space BIGINT NOT NULL,
  doc BIGINT NOT NULL,
  model TEXT COLLATE "C" NOT NULL,
  hash TEXT COLLATE "C" NOT NULL,
  vector BYTEA NOT NULL,              -- of length one; 32-bit numbers, the lowest byte first
  PRIMARY KEY (tenant, space, doc)
);
