-- Bytes of the texts that stay of a job once it has ended: each user's history has a budget of them.
ALTER TABLE job ADD COLUMN texts INTEGER NOT NULL DEFAULT 0;
UPDATE job SET texts = octet_length(name) + octet_length(user) + octet_length(queue) + octet_length(command)
    + octet_length(cwd) + octet_length(terms) + octet_length(secrets)
    + coalesce(octet_length(project), 0) + coalesce(octet_length(container), 0);

-- The pruner reads each user's history once a minute, in this index alone.
DROP INDEX job_ended;
CREATE INDEX job_ended ON job (uid, ended_at, texts) WHERE state = 'ended';

-- The same for the usage of each user.
CREATE INDEX usage_user ON usage (uid);
