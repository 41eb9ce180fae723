-- Whether a job was told of already is asked in the cycle, of as many events as are kept.
CREATE INDEX event_uncounted ON event (job) WHERE kind = 'uncounted';
