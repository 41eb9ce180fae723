-- Whose a job is, by the kernel's word when it was submitted. Absent: the agent's own user's.
ALTER TABLE job ADD COLUMN uid INTEGER;
ALTER TABLE job ADD COLUMN gid INTEGER;
