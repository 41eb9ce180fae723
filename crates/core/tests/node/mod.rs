//! A node on paper: a snapshot that tests submit to, plan for, and carry the plan out on.
#![allow(dead_code)] // Each test program uses its part.

use divvy_core::{
    Amount, Bytes, Gpu, GpuUuid, Held, JobId, Mode, Order, Plan, Queue, QueueName, QueueSpec,
    Request, Snapshot, Waiting, invariants, parse_queues, plan,
};

#[derive(Clone, Debug)]
pub struct Node {
    pub snapshot: Snapshot,
    submitted: u64,
}

/// A GPU of 80 GiB, all of it usable, so that figures in tests are round.
pub fn gpu(index: u32) -> Gpu {
    let mut uuid = [0; 16];
    uuid[15] = u8::try_from(index).expect("few GPUs");
    Gpu {
        uuid: GpuUuid::from_bytes(uuid),
        index,
        model: "A100 80GB".to_owned(),
        mode: Mode::Shared,
        total: Bytes::gib(80),
        reserved: Bytes::ZERO,
        foreign: Bytes::ZERO,
        mig: None,
    }
}

pub fn amount(text: &str) -> Amount {
    match text.parse() {
        Ok(memory) => Amount::Memory(memory),
        Err(_) => Amount::from_gpu_flag(text).expect("an amount"),
    }
}

impl Node {
    /// So many GPUs, and these queues (`half=0.5 single=1`), the default queue after them.
    pub fn new(gpus: u32, queues: &str) -> Self {
        let mut node = Self {
            snapshot: Snapshot::default(),
            submitted: 0,
        };
        node.snapshot.gpus = (0..gpus).map(gpu).collect();
        let words: Vec<&str> = queues.split_whitespace().collect();
        node.set_queues(parse_queues(&words, true, false).expect("queues"));
        node
    }

    pub fn set_queues(&mut self, specs: Vec<QueueSpec>) {
        let default = QueueSpec::open(QueueName::default_queue());
        let queue = |spec| Queue {
            spec,
            waiting: Vec::new(),
        };
        self.snapshot.queues = specs.into_iter().chain([default]).map(queue).collect();
    }

    pub fn fair(mut self) -> Self {
        self.snapshot.order = Order::Fairness;
        self
    }

    pub fn backfilling(mut self) -> Self {
        self.snapshot.backfill = true;
        self
    }

    /// Queues a job for its queue's amount.
    pub fn submit(&mut self, queue: &str) -> u64 {
        let amount = self
            .queue(queue)
            .spec
            .amount
            .expect("a queue with an amount");
        self.submit_request(queue, amount.into())
    }

    /// Queues a job for an amount of its own in the default queue: `0.25`, `4GiB`, `2`, `1-4`, `8x0.5`.
    pub fn ask(&mut self, text: &str) -> u64 {
        self.submit_request("default", amount(text).into())
    }

    pub fn submit_request(&mut self, queue: &str, request: Request) -> u64 {
        self.submitted += 1;
        let job = self.submitted;
        self.queue(queue).waiting.push(Waiting {
            job: JobId(job),
            request,
        });
        job
    }

    fn queue(&mut self, name: &str) -> &mut Queue {
        let mut queues = self.snapshot.queues.iter_mut();
        queues
            .find(|queue| queue.spec.name.as_str() == name)
            .expect("a queue of that name")
    }

    /// Plans, carries the plan out, checks what must hold.
    pub fn step(&mut self) -> Plan {
        let plan = plan(&self.snapshot);
        for start in &plan.starts {
            for queue in &mut self.snapshot.queues {
                queue.waiting.retain(|waiting| waiting.job != start.job);
            }
            let (job, queue, grants) = (start.job, start.queue.clone(), start.grants.clone());
            self.snapshot.held.push(Held { job, queue, grants });
        }
        self.snapshot.cursor = plan.cursor;
        invariants::check(&self.snapshot).expect("the plan keeps what must hold");
        plan
    }

    /// Plans and carries out; the jobs that started, in that order.
    pub fn start(&mut self) -> Vec<u64> {
        self.step().starts.iter().map(|start| start.job.0).collect()
    }

    /// Ends a job that holds something; false when it holds nothing.
    pub fn end(&mut self, job: u64) -> bool {
        let before = self.snapshot.held.len();
        self.snapshot.held.retain(|held| held.job.0 != job);
        self.snapshot.held.len() < before
    }

    /// The labels that a job holds, joined by blanks.
    pub fn labels(&self, job: u64) -> String {
        let held = self
            .snapshot
            .held
            .iter()
            .find(|held| held.job.0 == job)
            .expect("a job that holds something");
        held.grants
            .iter()
            .map(|grant| grant.label.as_str())
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// Why a job waits, as `plan` says it.
    pub fn reason(&self, job: u64) -> String {
        let plan = plan(&self.snapshot);
        let wait = plan
            .waits
            .iter()
            .find(|wait| wait.job.0 == job)
            .expect("a job that waits");
        wait.reason.to_string()
    }
}
