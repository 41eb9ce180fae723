-- What is to hold the memory limit of an allocation: `interposer` (the limiter), `driver` or `mig`. NULL in rows of former
-- versions: `mig` where there is an instance, else the limiter.
ALTER TABLE holding ADD COLUMN enforcement TEXT;
