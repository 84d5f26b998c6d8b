-- Version 11. Adds only; each part under a line that says what for.

-- Did the agent's memory learn from the turn that this tells of? What was told before this was asked is taken to be known.
ALTER TABLE outbox ADD COLUMN taught BIGINT NOT NULL DEFAULT 0;
UPDATE outbox SET taught = 1 WHERE state = 'delivered';
