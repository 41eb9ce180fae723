-- Events are kept by user: those of a user's jobs, those of no job, and acts of administrators each have bounds of their
-- own. Events of a job that is deleted already belong to no user.
ALTER TABLE event ADD COLUMN uid INTEGER;
ALTER TABLE event ADD COLUMN act INTEGER NOT NULL DEFAULT 0;
UPDATE event SET uid = (SELECT uid FROM job WHERE job.id = event.job) WHERE job IS NOT NULL;
UPDATE event SET act = 1 WHERE kind IN ('gpu_mode', 'project_added', 'project_changed', 'project_removed',
    'config_reloaded', 'config_refused');
CREATE INDEX event_pot ON event (act, uid);
