-- Why a GPU gets no jobs (who, since, until, reason) as JSON; NULL while it is in service.
ALTER TABLE gpu ADD COLUMN out_of_service TEXT;
-- The lasting fault that an administrator has accepted with `undrain`.
ALTER TABLE gpu ADD COLUMN accepted_fault TEXT;
