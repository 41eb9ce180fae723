-- How the job's compute time is divided since that was changed, as `compute`.
ALTER TABLE job ADD COLUMN redivided TEXT;
