"""Runs a program so many times through HyperQueue, each time as a job of its own on an eighth of a processor of eight.

hyperqueue_jobs.py COUNT PROGRAM LOG
"""

import sys

from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig
from hyperqueue.ffi.protocol import ResourceRequest

count, program, log = int(sys.argv[1]), sys.argv[2], sys.argv[3]
with LocalCluster() as cluster:
    cluster.start_worker(WorkerConfig(cores=8))
    client = cluster.client()
    submitted = []
    for _ in range(count):
        job = Job()
        eighth = ResourceRequest(cpus=0.125)
        job.program([program, log], stdout=None, stderr=None, resources=eighth)
        submitted.append(client.submit(job))
    client.wait_for_jobs(submitted)
