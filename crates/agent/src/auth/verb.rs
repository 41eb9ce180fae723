//! The table of API calls by method and path, with the permission of each, so that a new path is an admin's until it is
//! listed here.

/// The kind of action, as far as permissions distinguish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// See GPUs, queues and waiting jobs.
    View,
    /// See what a job wrote.
    Read,
    Submit,
    /// Stop, resize or otherwise act on a job.
    Change,
    /// Act on the jobs that match a filter, each of which is a [`Verb::Change`].
    ChangeSelected,
    /// Run a program as a job's user, with all that the job has.
    Exec,
    /// Remove unused objects.
    CleanUp,
    /// Hold devices for programs of another scheduler.
    HoldClaim,
    /// Change the node, or the rules for all users.
    Administer,
}

#[cfg(test)]
impl Verb {
    pub const ALL: [Self; 9] = [
        Self::View,
        Self::Read,
        Self::Submit,
        Self::Change,
        Self::ChangeSelected,
        Self::Exec,
        Self::CleanUp,
        Self::HoldClaim,
        Self::Administer,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::View => "look",
            Self::Read => "read",
            Self::Submit => "submit",
            Self::Change => "change",
            Self::ChangeSelected => "select",
            Self::Exec => "enter",
            Self::CleanUp => "tidy",
            Self::HoldClaim => "claim",
            Self::Administer => "govern",
        }
    }
}

/// A call that is about one job, and the rest of its path: `/cancel`, or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobPath<'a> {
    pub reference: &'a str,
    pub rest: &'a str,
}

/// The job that a path is about, still percent-encoded.
pub fn job(path: &str) -> Option<JobPath<'_>> {
    let below = path.strip_prefix("/v1/jobs/")?;
    let at = below.find('/').unwrap_or(below.len());
    let (reference, rest) = below.split_at(at);
    (!reference.is_empty()).then_some(JobPath { reference, rest })
}

/// What the call does; `None` for one that is in no line of the table.
pub fn known(method: &str, path: &str) -> Option<Verb> {
    let reads = matches!(method, "GET" | "HEAD");
    if let Some(JobPath { rest, .. }) = job(path) {
        return match (reads, rest) {
            (true, "" | "/why" | "/wait") => Some(Verb::View),
            (true, "/log" | "/oom" | "/docker") => Some(Verb::Read),
            (
                false,
                "/cancel" | "/confirm" | "/resize" | "/requeue" | "/suspend" | "/resume" | "/park"
                | "/wake",
            ) => Some(Verb::Change),
            (false, "/signal" | "/change" | "/hold" | "/release") => Some(Verb::Change),
            (false, "/exec") => Some(Verb::Exec),
            _ => None,
        };
    }
    let mut parts = path.split('/').skip(1);
    match (method, parts.next(), parts.next(), parts.next()) {
        ("GET" | "HEAD", Some("metrics" | "healthz" | "readyz"), None, None)
        // `divvy web` alone has the last two; the daemon answers that it has none.
        | ("GET" | "HEAD", Some("web"), Some("session" | "doctor"), None)
        | ("POST", Some("web"), Some("selftest"), None) => Some(Verb::View),
        (
            "GET" | "HEAD",
            Some("v1"),
            Some(
                "node" | "board" | "gpus" | "queues" | "jobs" | "events" | "advice" | "mig"
                | "projects" | "usage" | "history",
            ),
            None,
        )
        | ("POST", Some("v1"), Some("mig"), Some("plan")) => Some(Verb::View),
        ("GET" | "HEAD", Some("v1"), Some("gpus"), Some(_)) if path.ends_with("/placements") => {
            Some(Verb::View)
        }
        // The list has the caller's own alone, below the role of an operator.
        ("GET" | "HEAD", Some("v1"), Some("claims"), None) => Some(Verb::View),
        // The controller knows the claim's owner, and decides.
        ("DELETE", Some("v1"), Some("claims"), Some(_)) => Some(Verb::Submit),
        ("PUT", Some("v1"), Some("claims"), Some(_)) => Some(Verb::HoldClaim),
        ("POST", Some("v1"), Some("jobs"), None) => Some(Verb::Submit),
        // The controller checks the owner of each selected job.
        ("PATCH", Some("v1"), Some("jobs"), None) => Some(Verb::ChangeSelected),
        ("POST", Some("v1"), Some("mig"), Some("gc")) => Some(Verb::CleanUp),
        ("PATCH", Some("v1"), Some("gpus"), Some(_))
        | ("POST", Some("v1"), Some("gpus"), Some("drain" | "undrain"))
        | ("GET" | "HEAD", Some("v1"), Some("config"), None)
        | ("POST", Some("v1"), Some("config"), Some("reload"))
        | ("POST" | "PUT" | "PATCH" | "DELETE", Some("v1"), Some("projects"), _) => {
            Some(Verb::Administer)
        }
        _ => None,
    }
}

/// What the call does; an unknown one is for admins.
pub fn for_request(method: &str, path: &str) -> Verb {
    known(method, path).unwrap_or(Verb::Administer)
}

#[cfg(test)]
mod tests {
    use divvy_api::route::ROUTES;

    use super::*;

    /// Written down apart from the code: a call that gets another verb by mistake is open to other users.
    const VERBS: &[(Verb, &[&str])] = &[
        (
            Verb::View,
            &[
                "GET /v1/advice",
                "GET /v1/board",
                "GET /v1/claims",
                "GET /v1/events",
                "GET /v1/gpus",
                "GET /v1/gpus/{gpu}/placements",
                "GET /v1/history",
                "GET /v1/jobs",
                "GET /v1/jobs/{job}",
                "GET /v1/jobs/{job}/wait",
                "GET /v1/jobs/{job}/why",
                "GET /v1/mig",
                "GET /v1/node",
                "GET /v1/projects",
                "GET /v1/queues",
                "GET /v1/usage",
                "POST /v1/mig/plan",
            ],
        ),
        (
            Verb::Read,
            &[
                "GET /v1/jobs/{job}/docker",
                "GET /v1/jobs/{job}/log",
                "GET /v1/jobs/{job}/oom",
            ],
        ),
        (Verb::Submit, &["DELETE /v1/claims/{uid}", "POST /v1/jobs"]),
        (
            Verb::Change,
            &[
                "POST /v1/jobs/{job}/cancel",
                "POST /v1/jobs/{job}/change",
                "POST /v1/jobs/{job}/confirm",
                "POST /v1/jobs/{job}/hold",
                "POST /v1/jobs/{job}/release",
                "POST /v1/jobs/{job}/requeue",
                "POST /v1/jobs/{job}/resize",
                "POST /v1/jobs/{job}/resume",
                "POST /v1/jobs/{job}/park",
                "POST /v1/jobs/{job}/wake",
                "POST /v1/jobs/{job}/signal",
                "POST /v1/jobs/{job}/suspend",
            ],
        ),
        (Verb::ChangeSelected, &["PATCH /v1/jobs"]),
        (Verb::Exec, &["POST /v1/jobs/{job}/exec"]),
        (Verb::CleanUp, &["POST /v1/mig/gc"]),
        (Verb::HoldClaim, &["PUT /v1/claims/{uid}"]),
        (
            Verb::Administer,
            &[
                "DELETE /v1/projects/{project}",
                "GET /v1/config",
                "POST /v1/config/reload",
                "PATCH /v1/gpus/{gpu}",
                "POST /v1/gpus/drain",
                "POST /v1/gpus/undrain",
                "PATCH /v1/projects/{project}",
                "POST /v1/projects/{project}",
            ],
        ),
    ];

    #[test]
    fn every_call_of_the_api_has_its_verb() {
        let expected = |call: &str| {
            let of = VERBS.iter().find(|(_, calls)| calls.contains(&call));
            of.map(|(verb, _)| *verb)
        };
        for route in ROUTES {
            let path = route.path.replace("{job}", "7").replace("{gpu}", "0");
            let call = format!("{} {}", route.method, route.path);
            let verb = known(route.method, &path);
            assert!(verb.is_some(), "{call} is in no line of the table");
            assert_eq!(verb, expected(&call), "{call}");
        }
        let listed: usize = VERBS.iter().map(|(_, calls)| calls.len()).sum();
        assert_eq!(listed, ROUTES.len());
    }

    #[test]
    fn what_is_not_known_is_an_admins() {
        for (method, path) in [
            ("POST", "/v1/jobs/7/anything"),
            ("DELETE", "/v1/jobs/7"),
            ("GET", "/v1/jobs/7/environment"),
            ("GET", "/v2/jobs"),
            ("GET", "/v1//jobs"),
        ] {
            assert_eq!(
                for_request(method, path),
                Verb::Administer,
                "{method} {path}"
            );
        }
    }

    #[test]
    fn a_jobs_path_gives_its_reference() {
        let of = |path| job(path).map(|of| (of.reference, of.rest));
        assert_eq!(of("/v1/jobs/7"), Some(("7", "")));
        assert_eq!(of("/v1/jobs/a%20b/log"), Some(("a%20b", "/log")));
        assert_eq!(of("/v1/jobs/"), None);
        assert_eq!(of("/v1/jobs"), None);
    }
}
