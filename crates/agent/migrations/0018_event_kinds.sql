-- Event kinds get the names of docs/glossary.md. The index names a kind, so it is made anew.
DROP INDEX event_uncounted;
UPDATE event SET kind = CASE kind
    WHEN 'claimed' THEN 'allocated'
    WHEN 'entered' THEN 'exec'
    WHEN 'memory_kept' THEN 'memory_release_failed'
    WHEN 'memory_due' THEN 'memory_restore_pending'
    WHEN 'memory_returning' THEN 'memory_restoring'
    WHEN 'memory_stuck' THEN 'memory_restore_failed'
    WHEN 'notice_dropped' THEN 'notification_dropped'
    WHEN 'unknown' THEN 'unknown_job'
    WHEN 'adopted' THEN 'container_adopted'
    WHEN 'bypass_over' THEN 'bypass_ended'
    WHEN 'uncounted' THEN 'uncounted_calls'
    WHEN 'accounts_only' THEN 'process_memory_unknown'
    WHEN 'gpu_back' THEN 'gpu_recovered'
    WHEN 'left' THEN 'orphan_process'
    WHEN 'mig_reclaimed' THEN 'mig_evicted'
    WHEN 'mig_refused' THEN 'mig_create_failed'
    WHEN 'mig_gone' THEN 'mig_lost'
    WHEN 'mig_foreign' THEN 'mig_unmanaged'
    WHEN 'mig_stranger' THEN 'mig_foreign_process'
    WHEN 'mig_astray' THEN 'mig_wrong_instance'
    END
WHERE kind IN ('claimed', 'entered', 'memory_kept', 'memory_due', 'memory_returning', 'memory_stuck', 'notice_dropped',
    'unknown', 'adopted', 'bypass_over', 'uncounted', 'accounts_only', 'gpu_back', 'left', 'mig_reclaimed', 'mig_refused',
    'mig_gone', 'mig_foreign', 'mig_stranger', 'mig_astray');
CREATE INDEX event_uncounted ON event (job) WHERE kind = 'uncounted_calls';
