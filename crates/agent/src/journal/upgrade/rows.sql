-- What the first version wrote of a job that waits, one that runs and one that has ended.
INSERT INTO job (id, key, name, user, project, queue, amount, compute, gpus_on, runner, command, cwd, env, state, attempt, pid,
                 pid_start, submitted_at, started_at, ended_at, outcome, exit_code, reason) VALUES
    (1, NULL, 'done', 'ana', NULL, 'default', '{"kind":"share","thousandths":250}', 'fair', '[]', 'supervisor', '["false"]', '/',
     NULL, 'ended', 1, NULL, NULL, 1767323045678901, 1767323046000000, 1767323047000000, '{"exited":3}', 3, 'exited with code 3'),
    (2, 'k', 'train', 'ana', 'vision', 'half', '{"kind":"share","thousandths":500}', 'strict', '[0]', 'supervisor',
     '["python","train.py"]', '/work', '{"TOKEN":"secret"}', 'running', 2, 4194000, 77, 1767323048000000, 1767323049000000, NULL,
     NULL, NULL, NULL),
    (3, NULL, 'waits', 'lee', NULL, 'default', '{"kind":"memory","bytes":21474836480}', 'none', '[]', 'client', '["true"]', '/',
     '{}', 'queued', 0, NULL, NULL, 1767323050000000, NULL, NULL, NULL, NULL, NULL);
INSERT INTO holding (job, ordinal, gpu_uuid, gpu_index, memory, share, label, held, peak, denied, last_denied) VALUES
    (1, 0, 'GPU-07070707-0707-0707-0707-070707070707', 0, 21474836480, 250, 'gpu0.25a', 0, 1048576, 2, 4096),
    (2, 0, 'GPU-07070707-0707-0707-0707-070707070707', 0, 42949672960, 500, 'gpu0.5a', 1, 0, 0, NULL);
INSERT INTO event (at, job, kind, text) VALUES (1767323045678901, 1, 'submitted', 'done'), (1767323047000000, 1, 'ended', 'failed');
INSERT INTO setting VALUES ('cursor', '1');
INSERT INTO overhead VALUES ('A100', '570', 314572800);
