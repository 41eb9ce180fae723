-- The container that the job's command runs in, as the API has it; NULL for a plain process.
ALTER TABLE job ADD COLUMN container TEXT;
