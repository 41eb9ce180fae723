-- Earlier runs of a job are its owner's: those of others of the same name are passed over without being looked at.
DROP INDEX job_name;
CREATE INDEX job_name ON job (uid, name);
