//! Route table of version 1 of the API. The OpenAPI document and the agent's tests come from this table.

/// One call.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// `GET`, `POST`, `PUT`, `PATCH` or `DELETE`.
    pub method: &'static str,
    /// `{job}` stands for a reference: a number, a name that one job has, `12_3` for the job of array 12 with index 3, or `last`; `{gpu}` for an index or a UUID,
    /// `{project}` for a name, `{uid}` for a claim's.
    pub path: &'static str,
    pub summary: &'static str,
    pub query: &'static [Parameter],
    pub body: Body,
    pub answer: Answer,
}

/// A query parameter.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    pub name: &'static str,
    pub about: &'static str,
    pub kind: Kind,
}

/// Type of a query parameter, with its default.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Flag,
    Number {
        default: u64,
    },
    OneOf {
        words: &'static [&'static str],
        default: &'static str,
    },
    /// Absent unless given.
    Text,
    Default(&'static str),
}

/// Request body of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    None,
    /// The type's name in `v1`.
    Json(&'static str),
}

/// Response body of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A [`crate::v1::List`] of this `v1` type, and its `kind`.
    List {
        of: &'static str,
        kind: &'static str,
    },
    /// The same, or server-sent events of it with `follow`.
    Events,
    /// A [`crate::v1::List`] with a [`crate::v1::Board`], or server-sent events with `follow`: a board, then each a
    /// [`crate::v1::BoardChange`].
    Board,
    /// [`JOBS`], or with `brief` a [`crate::v1::Brief`] a line.
    Jobs,
    /// Bytes as a program wrote them.
    Bytes,
    /// Another protocol on the same connection: [`crate::frame`].
    Frames,
}

const fn get(path: &'static str, summary: &'static str, answer: Answer) -> Route {
    Route {
        method: "GET",
        path,
        summary,
        query: &[],
        body: Body::None,
        answer,
    }
}

const JOBS: Answer = Answer::List {
    of: "Job",
    kind: "JobList",
};
const GPUS: Answer = Answer::List {
    of: "Gpu",
    kind: "GpuList",
};
const INSTANCES: Answer = Answer::List {
    of: "MigInstance",
    kind: "MigInstanceList",
};
const CLAIMS: Answer = Answer::List {
    of: "HeldClaim",
    kind: "ClaimList",
};
const PROJECTS: Answer = Answer::List {
    of: "Project",
    kind: "ProjectList",
};
/// Header of a log's answer: the place of its first byte in all that the job has said. Beyond the offset that was asked for, what lay
/// between is not kept any more.
pub const LOG_FROM: &str = "divvy-log-from";

/// Header of an answer about an array, which is a list of its jobs: what the array is referred to by.
pub const ARRAY: &str = "divvy-array";

const FOLLOW: Parameter = Parameter {
    name: "follow",
    about: "Keep the connection open and send later entries",
    kind: Kind::Flag,
};

const STATE: Parameter = Parameter {
    name: "state",
    about: "Only jobs in these states or with these reasons of the end, separated by commas, whatever `all` is: `queued,running`, `failed`",
    kind: Kind::Text,
};
const PROJECT: Parameter = Parameter {
    name: "project",
    about: "Only jobs of this project; empty: jobs without a project",
    kind: Kind::Text,
};
const QUEUE: Parameter = Parameter {
    name: "queue",
    about: "Only jobs of this queue",
    kind: Kind::Text,
};
const GPU: Parameter = Parameter {
    name: "gpu",
    about: "Only jobs with a slice on this GPU, or that had one when they ended: an index or a UUID",
    kind: Kind::Text,
};
const NAME: Parameter = Parameter {
    name: "name",
    about: "Only jobs of this name; `*` stands for any text",
    kind: Kind::Text,
};
const TEXT: Parameter = Parameter {
    name: "text",
    about: "Only jobs with this text in the number, name, user, queue or project, without regard to case",
    kind: Kind::Text,
};

/// The table.
pub const ROUTES: &[Route] = &[
    get(
        "/v1/node",
        "The node and its daemon",
        Answer::List {
            of: "Node",
            kind: "Node",
        },
    ),
    get("/v1/gpus", "GPUs and the slices on them", GPUS),
    Route {
        method: "PATCH",
        body: Body::Json("GpuChange"),
        ..get(
            "/v1/gpus/{gpu}",
            "Change the mode of a GPU, or report the steps of the change",
            Answer::List {
                of: "GpuChanged",
                kind: "GpuChange",
            },
        )
    },
    Route {
        method: "POST",
        body: Body::Json("Drain"),
        ..get(
            "/v1/gpus/drain",
            "Take GPUs out of service: running jobs continue, and no job starts there. Answers with these GPUs",
            GPUS,
        )
    },
    Route {
        method: "POST",
        body: Body::Json("Undrain"),
        ..get(
            "/v1/gpus/undrain",
            "Return GPUs to service, also those that the daemon took out for a fault. Answers with these GPUs",
            GPUS,
        )
    },
    get(
        "/v1/gpus/{gpu}/placements",
        "Slots for MIG instances on a GPU in MIG mode, free or not, in the order in which the daemon uses them",
        Answer::List {
            of: "MigPlacement",
            kind: "MigPlacementList",
        },
    ),
    get("/v1/mig", "Every MIG instance", INSTANCES),
    Route {
        method: "POST",
        body: Body::Json("MigWanted"),
        ..get(
            "/v1/mig/plan",
            "Placements for several MIG instances together; changes and reserves nothing",
            Answer::List {
                of: "MigPlanned",
                kind: "MigPlan",
            },
        )
    },
    Route {
        method: "POST",
        body: Body::Json("MigGc"),
        ..get("/v1/mig/gc", "Destroy the idle MIG instances", INSTANCES)
    },
    get(
        "/v1/queues",
        "Queues, in the order in which the daemon serves them",
        Answer::List {
            of: "Queue",
            kind: "QueueList",
        },
    ),
    Route {
        query: &[FOLLOW],
        ..get(
            "/v1/board",
            "One small picture of the node for viewers, the same for every caller. Its `ETag` changes with its content; the daemon renders it \
             at most twice a second",
            Answer::Board,
        )
    },
    get(
        "/v1/claims",
        "Claims that another scheduler has allocated and not released, and slices, oldest first. Below the role operator, the caller's own",
        CLAIMS,
    ),
    Route {
        method: "PUT",
        body: Body::Json("Claim"),
        ..get(
            "/v1/claims/{uid}",
            "Hold exactly these devices, or refuse it and make nothing; answered once the slice, its CDI device and MIG instances are \
             there. The same again changes nothing and makes what is missing anew",
            CLAIMS,
        )
    },
    Route {
        method: "DELETE",
        ..get(
            "/v1/claims/{uid}",
            "Release a claim; succeeds for a claim that is not held. The owner of a slice may release it",
            CLAIMS,
        )
    },
    get(
        "/v1/config",
        "Values of the configuration in force, with the origin of each",
        Answer::List {
            of: "ConfigValue",
            kind: "ConfigList",
        },
    ),
    Route {
        method: "POST",
        ..get(
            "/v1/config/reload",
            "Read the configuration file again. If anything in it is wrong, nothing changes",
            Answer::List {
                of: "ConfigReload",
                kind: "ConfigReload",
            },
        )
    },
    get(
        "/v1/projects",
        "Projects with their quotas and use",
        PROJECTS,
    ),
    Route {
        method: "POST",
        body: Body::Json("ProjectChange"),
        ..get("/v1/projects/{project}", "Create a project", PROJECTS)
    },
    Route {
        method: "PATCH",
        body: Body::Json("ProjectChange"),
        ..get("/v1/projects/{project}", "Change a project", PROJECTS)
    },
    Route {
        method: "DELETE",
        ..get(
            "/v1/projects/{project}",
            "Remove a project without jobs",
            PROJECTS,
        )
    },
    Route {
        query: &[
            Parameter {
                name: "by",
                about: "Columns to group by, separated by commas: day, user, project, queue, gpu, job, namespace; empty for one row. By day alone, days \
                        without usage have rows, too",
                kind: Kind::Default("user,project"),
            },
            Parameter {
                name: "since",
                about: "Start of the period (RFC 3339); default: 30 days before `until`",
                kind: Kind::Text,
            },
            Parameter {
                name: "until",
                about: "End of the period (RFC 3339); default: now",
                kind: Kind::Text,
            },
            Parameter {
                name: "zone",
                about: "Time zone of days: an IANA name, an offset (+02:00) or a POSIX rule",
                kind: Kind::Default("UTC"),
            },
        ],
        ..get(
            "/v1/usage",
            "Allocated and used GPU time of the caller; for operators, of all users",
            Answer::List {
                of: "Usage",
                kind: "UsageList",
            },
        )
    },
    Route {
        query: &[
            Parameter {
                name: "of",
                about: "Subject: `node`, `gpu:0`, `job:7`, `slice:7/gpu0.5a` of a job with several slices, `queue:default`, \
                        `user:ana` or `project:vision`",
                kind: Kind::Default("node"),
            },
            Parameter {
                name: "since",
                about: "Start of the period (RFC 3339); default: as far back as the step is kept",
                kind: Kind::Text,
            },
            Parameter {
                name: "step",
                about: "Seconds between two points: 1 (kept for 10 minutes), 10 (6 hours) or 60 (7 days); default: the \
                        finest that covers the period, or without `since` 1",
                kind: Kind::Text,
            },
        ],
        ..get(
            "/v1/history",
            "Figures of the node, a GPU, a job, a queue, a user or a project over time; other users' only for operators",
            Answer::List {
                of: "History",
                kind: "History",
            },
        )
    },
    Route {
        query: &[
            Parameter {
                name: "all",
                about: "Include jobs that have ended",
                kind: Kind::Flag,
            },
            Parameter {
                name: "brief",
                about: "One line for each job (`Brief`): the columns of a table, without fields that are null, false or empty",
                kind: Kind::Flag,
            },
            STATE,
            Parameter {
                name: "user",
                about: "Only jobs of this user: a name or a uid",
                kind: Kind::Text,
            },
            PROJECT,
            QUEUE,
            GPU,
            NAME,
            TEXT,
            Parameter {
                name: "since",
                about: "Only jobs that had not ended at this time (RFC 3339), and also those that have ended since",
                kind: Kind::Text,
            },
            Parameter {
                name: "sort",
                about: "Order: `id`, `name`, `user`, `queue`, `project`, `state`, `memory`, `peak`, `share`, `submitted`, `started`, `ended`, `elapsed` or `place`; `-` before it reverses the order; default: `id`",
                kind: Kind::Text,
            },
            Parameter {
                name: "fold",
                about: "Queued tasks of an array with one queue and one request are one item (`folded`), at the place of the first; \
                        only with `state=queued` and `sort=place`. The header `divvy-items` has the number of items on all pages",
                kind: Kind::Flag,
            },
            Parameter {
                name: "limit",
                about: "At most so many jobs; 0: all. Without `sort` and `after` the newest ones, otherwise the first ones",
                kind: Kind::Number { default: 0 },
            },
            Parameter {
                name: "after",
                about: "Go on behind a page: its header `divvy-next`, which the last page does not have. The header `divvy-total` has the \
                        number of jobs on all pages",
                kind: Kind::Text,
            },
        ],
        ..get(
            "/v1/jobs",
            "Jobs that have not ended, oldest first",
            Answer::Jobs,
        )
    },
    Route {
        method: "POST",
        body: Body::Json("Submit"),
        ..get(
            "/v1/jobs",
            "Submit a job; the answer follows after the journal is on disk. For an array the answer is its first job",
            JOBS,
        )
    },
    Route {
        method: "PATCH",
        query: &[
            Parameter {
                name: "state",
                about: "Only jobs in these states, separated by commas; a selected job that the action cannot change is refused. Absent: \
                        only jobs that the action can change",
                kind: Kind::Text,
            },
            Parameter {
                name: "user",
                about: "Jobs of this user, a name or a uid. Absent: the caller's own jobs",
                kind: Kind::Text,
            },
            PROJECT,
            QUEUE,
            GPU,
            NAME,
            TEXT,
        ],
        body: Body::Json("JobsChange"),
        ..get(
            "/v1/jobs",
            "One action on all jobs that the query selects and that have not ended, decided at once; the answer follows after the journal \
             is on disk",
            Answer::List {
                of: "JobsChanged",
                kind: "JobsChange",
            },
        )
    },
    get(
        "/v1/jobs/{job}",
        "One job; for an array all of its jobs, with the array's number in the header `divvy-array`",
        JOBS,
    ),
    get(
        "/v1/jobs/{job}/why",
        "Reason why a job waits, and changes that would start it; for an array, of its first pending job",
        Answer::List {
            of: "Why",
            kind: "Why",
        },
    ),
    Route {
        query: &[
            Parameter {
                name: "state",
                about: "State to wait for; a job that has ended has passed every state",
                kind: Kind::OneOf {
                    words: &["starting", "ended"],
                    default: "ended",
                },
            },
            Parameter {
                name: "timeout_s",
                about: "Seconds after which the job is returned in its present state; at most 300",
                kind: Kind::Number { default: 30 },
            },
        ],
        ..get(
            "/v1/jobs/{job}/wait",
            "The job, once it is in a state. Of an array, once all jobs are: one that has not ended, else the one with the lowest index \
             without exit code 0, else with the lowest index",
            JOBS,
        )
    },
    Route {
        query: &[
            Parameter {
                name: "offset",
                about: "Bytes of the job's whole output to skip. The header `divvy-log-from` has the offset of the answer, which is later \
                        if early output is no longer stored",
                kind: Kind::Number { default: 0 },
            },
            Parameter {
                name: "from",
                about: "`end`: begin with the next output, regardless of the offset",
                kind: Kind::OneOf {
                    words: &["offset", "end"],
                    default: "offset",
                },
            },
            Parameter {
                name: "tail",
                about: "Of the output that is there now, only so many last lines",
                kind: Kind::Text,
            },
            Parameter {
                name: "since",
                about: "Only output since this time (RFC 3339), from the time mark before it: at most some seconds earlier, and \
                        for long ago up to a thirtieth of the age",
                kind: Kind::Text,
            },
            FOLLOW,
        ],
        ..get(
            "/v1/jobs/{job}/log",
            "Output of a job; a followed log ends with the job, and a daemon that stops breaks it off: ask again from the next byte",
            Answer::Bytes,
        )
    },
    Route {
        method: "POST",
        body: Body::Json("CancelJob"),
        ..get(
            "/v1/jobs/{job}/cancel",
            "Take a job out of its queue, or stop it; for an array, every job that has not ended",
            JOBS,
        )
    },
    Route {
        method: "POST",
        body: Body::Json("Confirm"),
        ..get(
            "/v1/jobs/{job}/confirm",
            "Confirm a job that has its slices, optionally with a new command; the answer follows after the journal is on disk",
            JOBS,
        )
    },
    Route {
        method: "POST",
        ..get(
            "/v1/jobs/{job}/requeue",
            "Stop a job and requeue it; for an array, every job that holds slices",
            JOBS,
        )
    },
    Route {
        method: "POST",
        body: Body::Json("Suspend"),
        ..get(
            "/v1/jobs/{job}/suspend",
            "Suspend a running job, or all running jobs of an array; GPU memory stays charged, or is released",
            JOBS,
        )
    },
    Route {
        method: "POST",
        ..get(
            "/v1/jobs/{job}/resume",
            "Resume a suspended job; for an array, every running job",
            JOBS,
        )
    },
    Route {
        method: "POST",
        ..get(
            "/v1/jobs/{job}/park",
            "Park a running job: its GPU memory moves to host memory, and its processes run on",
            JOBS,
        )
    },
    Route {
        method: "POST",
        ..get(
            "/v1/jobs/{job}/wake",
            "Wake a parked job: its GPU memory returns as soon as its GPUs have room",
            JOBS,
        )
    },
    Route {
        method: "POST",
        body: Body::Json("Resize"),
        ..get(
            "/v1/jobs/{job}/resize",
            "Resize a job: at once if it is pending or the GPU has room, otherwise once it uses less",
            JOBS,
        )
    },
    Route {
        method: "POST",
        body: Body::Json("JobChange"),
        ..get(
            "/v1/jobs/{job}/change",
            "Change a pending job's queue, place, amount, priority, time limit or name, all or nothing; \
             a running job's time limit or name",
            JOBS,
        )
    },
    Route {
        method: "POST",
        ..get(
            "/v1/jobs/{job}/hold",
            "Hold a pending job; later jobs may start before it",
            JOBS,
        )
    },
    Route {
        method: "POST",
        ..get(
            "/v1/jobs/{job}/release",
            "Release a held job; only operators release a hold by an operator on another user's job",
            JOBS,
        )
    },
    Route {
        method: "POST",
        body: Body::Json("Exec"),
        ..get(
            "/v1/jobs/{job}/exec",
            "Run another program inside a running job: same slice, same user; it ends with the job",
            Answer::Frames,
        )
    },
    Route {
        method: "POST",
        body: Body::Json("SignalJob"),
        ..get(
            "/v1/jobs/{job}/signal",
            "Send a signal to a running job's program",
            JOBS,
        )
    },
    get(
        "/v1/jobs/{job}/docker",
        "Options that bring a container into the job's slice",
        Answer::List {
            of: "DockerArgs",
            kind: "DockerArgs",
        },
    ),
    get(
        "/v1/jobs/{job}/oom",
        "Out-of-memory report of a job",
        Answer::List {
            of: "Oom",
            kind: "Oom",
        },
    ),
    Route {
        query: &[
            Parameter {
                name: "job",
                about: "Only runs of this job's program: a number, a unique name, or `last`",
                kind: Kind::Text,
            },
            Parameter {
                name: "name",
                about: "Only jobs of this name; `*` stands for any text",
                kind: Kind::Text,
            },
            Parameter {
                name: "program",
                about: "Only runs of this program: `python train.py`",
                kind: Kind::Text,
            },
        ],
        ..get(
            "/v1/advice",
            "Recommended amount, from earlier runs",
            Answer::List {
                of: "Advice",
                kind: "AdviceList",
            },
        )
    },
    Route {
        query: &[
            Parameter {
                name: "after",
                about: "Only events after this sequence number",
                kind: Kind::Number { default: 0 },
            },
            Parameter {
                name: "job",
                about: "Only events of this job, or of the jobs of this array: a number, a name, or `last`",
                kind: Kind::Text,
            },
            Parameter {
                name: "since",
                about: "Only events after the last one before this time (RFC 3339)",
                kind: Kind::Text,
            },
            Parameter {
                name: "tail",
                about: "Of the events that are there now, only so many: the newest ones",
                kind: Kind::Text,
            },
            FOLLOW,
        ],
        ..get("/v1/events", "Events, in order", Answer::Events)
    },
];
