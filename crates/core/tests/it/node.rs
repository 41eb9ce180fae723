//! A node on paper: a snapshot that tests submit to, plan for, and carry the plan out on.
#![allow(dead_code)] // Each test program uses its part.

use divvy_core::mig::{MigInventory, ProfileTable, UnallocatedInstance, UnallocatedState};
use divvy_core::order_key::sort_queue;
use divvy_core::{
    AllocatedJob, Amount, Bytes, Gpu, GpuUuid, Grant, JobId, Mode, Order, OrderKey, PendingJob,
    Plan, Queue, QueueName, QueueSpec, QueueWords, Request, SchedulingClass, Snapshot, Start,
    invariants, parse_queues, plan,
};

#[derive(Clone, Debug)]
pub struct Node {
    pub snapshot: Snapshot,
    submitted: u64,
    /// Each job with a multiple of this number yields; 0: none does.
    pub yields: u64,
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
        away: false,
        out_of_service: None,
        total: Bytes::gib(80),
        reserved: Bytes::ZERO,
        unmanaged: Bytes::ZERO,
        unlisted: Bytes::ZERO,
        unlisted_holder: None,
        enforcement: divvy_core::Enforcement::Limiter,
        elsewhere: Vec::new(),
        context: Bytes::ZERO,
        mig: None,
    }
}

pub fn amount(text: &str) -> Amount {
    match text.parse() {
        Ok(memory) => Amount::Memory(memory),
        Err(_) => Amount::from_gpu_flag(text)
            .or_else(|_| Amount::from_mig_flag(text))
            .expect("an amount"),
    }
}

/// Puts a GPU in MIG mode, as this model of data/mig.toml.
pub fn cut(gpu: &mut Gpu, model: &str) {
    let table = ProfileTable::of_model(model).expect("a model of data/mig.toml");
    model.clone_into(&mut gpu.model);
    gpu.mode = Mode::Mig;
    gpu.mig = Some(MigInventory {
        table,
        instances: Vec::new(),
    });
}

/// What becomes of the instances of a job that starts: those in its way are removed, and idle ones that it got are its own.
pub fn take(snapshot: &mut Snapshot, start: &Start) {
    let got = start.grants.iter();
    let got = got.filter_map(|grant| Some((grant.gpu.clone(), grant.mig?.placement)));
    for (uuid, placement) in got.chain(start.reclaim.iter().cloned()) {
        let gpu = snapshot.gpus.iter_mut().find(|gpu| gpu.uuid == uuid);
        if let Some(carving) = gpu.and_then(|gpu| gpu.mig.as_mut()) {
            carving
                .instances
                .retain(|instance| instance.placement != placement);
        }
    }
}

/// What becomes of the instances of jobs that have ended: they are kept.
pub fn keep(snapshot: &mut Snapshot, grants: &[Grant]) {
    for grant in grants {
        let gpu = snapshot.gpus.iter_mut().find(|gpu| gpu.uuid == grant.gpu);
        let carving = gpu.and_then(|gpu| gpu.mig.as_mut());
        if let (Some(carving), Some(mig)) = (carving, grant.mig) {
            carving.instances.push(UnallocatedInstance {
                placement: mig.placement,
                standing: UnallocatedState::Idle,
            });
        }
    }
}

impl Node {
    /// So many GPUs, and these queues (`half=0.5 single=1`), the default queue after them.
    pub fn new(gpus: u32, queues: &str) -> Self {
        let mut node = Self {
            snapshot: Snapshot::default(),
            submitted: 0,
            yields: 0,
        };
        node.snapshot.gpus = (0..gpus).map(gpu).collect();
        let words: Vec<&str> = queues.split_whitespace().collect();
        node.set_queues(parse_queues(&words, QueueWords::Amounts, false).expect("queues"));
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

    /// The same on somebody's account; one who stands before others is put before them.
    pub fn ask_as(&mut self, text: &str, owner: SchedulingClass) -> u64 {
        let job = self.ask(text);
        let waiting = &mut self.queue("default").waiting;
        let asked = waiting.last_mut().expect("it was just put there");
        asked.owner = owner;
        sort_queue(waiting);
        job
    }

    /// A job that had to leave waits again, before its equals.
    pub fn put_back(&mut self, job: JobId, request: Request, owner: SchedulingClass) {
        let waiting = &mut self.queue("default").waiting;
        waiting.push(PendingJob {
            owner,
            turn: OrderKey {
                requeued: true,
                ..OrderKey::default()
            },
            ..PendingJob::new(job, request)
        });
        sort_queue(waiting);
    }

    pub fn submit_request(&mut self, queue: &str, request: Request) -> u64 {
        self.submitted += 1;
        let job = self.submitted;
        let waiting = PendingJob {
            yields: self.yields > 0 && job.is_multiple_of(self.yields),
            ..PendingJob::new(JobId(job), request)
        };
        self.queue(queue).waiting.push(waiting);
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
            let queue = self.queue(start.queue.as_str());
            let waiting = queue
                .waiting
                .extract_if(.., |waiting| waiting.job == start.job);
            let owner = waiting.last().expect("it waited").owner;
            let (queue, grants) = (start.queue.clone(), start.grants.clone());
            take(&mut self.snapshot, start);
            self.snapshot.held.push(AllocatedJob {
                owner,
                ..AllocatedJob::new(start.job, queue, grants)
            });
        }
        (self.snapshot.cursor, self.snapshot.head) = (plan.cursor, plan.head);
        invariants::check(&self.snapshot).expect("the plan keeps what must hold");
        plan
    }

    /// Plans and carries out; the jobs that started, in that order.
    pub fn start(&mut self) -> Vec<u64> {
        self.step().starts.iter().map(|start| start.job.0).collect()
    }

    /// Ends a job that holds something; false when it holds nothing.
    pub fn end(&mut self, job: u64) -> bool {
        let held = &mut self.snapshot.held;
        let Some(place) = held.iter().position(|held| held.job.0 == job) else {
            return false;
        };
        let ended = held.remove(place);
        keep(&mut self.snapshot, &ended.grants);
        true
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
