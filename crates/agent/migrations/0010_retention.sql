-- What is beyond what is kept is found by when it ended, and by what is older than it.
CREATE INDEX job_ended ON job (ended_at) WHERE state = 'ended';
