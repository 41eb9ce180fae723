//! Every call of version 1, once: the document that describes them and the agent's tests come from this table.

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

/// What a query parameter's value is, with its default.
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

/// What a call takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    None,
    /// The type's name in `v1`.
    Json(&'static str),
}

/// What a call answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A [`crate::v1::List`] of this `v1` type, and its `kind`.
    List {
        of: &'static str,
        kind: &'static str,
    },
    /// The same, or server-sent events of it with `follow`.
    Events,
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
    about: "Go on as more comes",
    kind: Kind::Flag,
};

/// The table.
pub const ROUTES: &[Route] = &[
    get(
        "/v1/node",
        "The node and its agent",
        Answer::List {
            of: "Node",
            kind: "Node",
        },
    ),
    get(
        "/v1/gpus",
        "GPUs and what is cut from them",
        Answer::List {
            of: "Gpu",
            kind: "GpuList",
        },
    ),
    Route {
        method: "PATCH",
        body: Body::Json("GpuChange"),
        ..get(
            "/v1/gpus/{gpu}",
            "Change how a GPU may be used, or say what that would take",
            Answer::List {
                of: "GpuChanged",
                kind: "GpuChange",
            },
        )
    },
    get(
        "/v1/gpus/{gpu}/placements",
        "Where MIG instances may lie on a GPU in MIG mode, whatever lies there now; those first that are taken first",
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
            "Where MIG instances would go, all together; nothing is changed or held",
            Answer::List {
                of: "MigPlanned",
                kind: "MigPlan",
            },
        )
    },
    Route {
        method: "POST",
        body: Body::Json("MigGc"),
        ..get("/v1/mig/gc", "Remove the idle MIG instances", INSTANCES)
    },
    get(
        "/v1/queues",
        "Queues, in the order they are served",
        Answer::List {
            of: "Queue",
            kind: "QueueList",
        },
    ),
    get(
        "/v1/claims",
        "What another scheduler has given to somebody here and has not taken back, oldest first",
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
            "Give a claim back; one that is not held is none",
            CLAIMS,
        )
    },
    get("/v1/projects", "Projects, and where each stands", PROJECTS),
    Route {
        method: "POST",
        body: Body::Json("ProjectChange"),
        ..get("/v1/projects/{project}", "Make a project", PROJECTS)
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
            "Remove a project that no job belongs to",
            PROJECTS,
        )
    },
    Route {
        query: &[
            Parameter {
                name: "by",
                about: "What rows are put together by: some of user, project, queue, gpu, job, with commas between; nothing for one row",
                kind: Kind::Default("user,project"),
            },
            Parameter {
                name: "since",
                about: "From this time on (RFC 3339); 30 days before `until` unless given",
                kind: Kind::Text,
            },
            Parameter {
                name: "until",
                about: "Until this time (RFC 3339); now unless given",
                kind: Kind::Text,
            },
        ],
        ..get(
            "/v1/usage",
            "What was had of the GPUs and what was used, by the caller or, for operators, by everybody",
            Answer::List {
                of: "Usage",
                kind: "UsageList",
            },
        )
    },
    Route {
        query: &[
            Parameter {
                name: "all",
                about: "Also jobs that have ended",
                kind: Kind::Flag,
            },
            Parameter {
                name: "brief",
                about: "A line for each job (`Brief`), with what a table shows and without fields that are null, false or empty",
                kind: Kind::Flag,
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
            "Submit a job; what is answered is on disk. Of an array the first job is answered, whose number is the array's",
            JOBS,
        )
    },
    get(
        "/v1/jobs/{job}",
        "One job; for the number or the name of an array all of its jobs, and `divvy-array` in the answer is the array's number",
        JOBS,
    ),
    get(
        "/v1/jobs/{job}/why",
        "Why a job waits, and what would start it sooner; of an array the first job that waits",
        Answer::List {
            of: "Why",
            kind: "Why",
        },
    ),
    Route {
        query: &[
            Parameter {
                name: "state",
                about: "The state to wait for; a job that has ended is past every state",
                kind: Kind::OneOf {
                    words: &["starting", "ended"],
                    default: "ended",
                },
            },
            Parameter {
                name: "timeout_s",
                about: "Answer with the job as it is after so many seconds; at most 300",
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
                about: "Skip so many bytes of all that the job has ever said; `divvy-log-from` in the answer says where it begins, which is \
                        later where so early output is not kept any more",
                kind: Kind::Number { default: 0 },
            },
            Parameter {
                name: "from",
                about: "`end`: begin with what comes next, whatever the offset",
                kind: Kind::OneOf {
                    words: &["offset", "end"],
                    default: "offset",
                },
            },
            FOLLOW,
        ],
        ..get(
            "/v1/jobs/{job}/log",
            "A job's output; followed, it ends with the job",
            Answer::Bytes,
        )
    },
    Route {
        method: "POST",
        ..get(
            "/v1/jobs/{job}/cancel",
            "Take a job out of its queue, or stop it; of an array every job that has not ended",
            JOBS,
        )
    },
    Route {
        method: "POST",
        body: Body::Json("Confirm"),
        ..get(
            "/v1/jobs/{job}/confirm",
            "Start a job that has its slice and was to be confirmed, perhaps with what it is to run; what is answered is on disk",
            JOBS,
        )
    },
    Route {
        method: "POST",
        ..get(
            "/v1/jobs/{job}/requeue",
            "Stop a job and put it back into its queue, to be started anew; of an array every job that holds something",
            JOBS,
        )
    },
    Route {
        method: "POST",
        body: Body::Json("Suspend"),
        ..get(
            "/v1/jobs/{job}/suspend",
            "Stop every process of a job that runs, or of every job of an array that does; its memory stays charged, or is released",
            JOBS,
        )
    },
    Route {
        method: "POST",
        ..get(
            "/v1/jobs/{job}/resume",
            "Let a suspended job go on; of an array every job that runs",
            JOBS,
        )
    },
    Route {
        method: "POST",
        body: Body::Json("Resize"),
        ..get(
            "/v1/jobs/{job}/resize",
            "Give a job more or less: at once where it waits or there is room, else once it uses less",
            JOBS,
        )
    },
    Route {
        method: "POST",
        body: Body::Json("JobChange"),
        ..get(
            "/v1/jobs/{job}/change",
            "Change a waiting job's queue, place, amount, priority, time limit or name, all or nothing; \
             a running job's time limit or name",
            JOBS,
        )
    },
    Route {
        method: "POST",
        ..get(
            "/v1/jobs/{job}/hold",
            "Keep a waiting job from starting; jobs behind it go past",
            JOBS,
        )
    },
    Route {
        method: "POST",
        ..get(
            "/v1/jobs/{job}/release",
            "Let a held job go on; what an operator holds of another user's, only operators release",
            JOBS,
        )
    },
    Route {
        method: "POST",
        body: Body::Json("Exec"),
        ..get(
            "/v1/jobs/{job}/exec",
            "Run another program inside of a running job: same slice, same user, and it ends with the job",
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
        "What brings a container into the job's slice",
        Answer::List {
            of: "DockerArgs",
            kind: "DockerArgs",
        },
    ),
    get(
        "/v1/jobs/{job}/oom",
        "What a job's refusals of GPU memory looked like",
        Answer::List {
            of: "Oom",
            kind: "Oom",
        },
    ),
    Route {
        query: &[
            Parameter {
                name: "job",
                about: "Only runs of what this job runs: a number, a name that one job has, or `last`",
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
            "What to ask for, from what earlier runs used",
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
            FOLLOW,
        ],
        ..get("/v1/events", "What happened, in order", Answer::Events)
    },
];
