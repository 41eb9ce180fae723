-- How strongly a job's slice is to be kept apart from others, and whether the memory it asks for is meant to the byte.
ALTER TABLE job ADD COLUMN isolation TEXT NOT NULL DEFAULT 'any';
ALTER TABLE job ADD COLUMN exact INTEGER NOT NULL DEFAULT 0 CHECK (exact IN (0, 1));

-- The MIG instance that a holding is: profile and placement; NULL where it is a part of a GPU or all of it.
ALTER TABLE holding ADD COLUMN mig TEXT;
