mod model;

use super::super::pod_status::End;
use super::*;

fn facts(status: Option<Status>, pod: Option<PodState>) -> TaskFacts {
    TaskFacts {
        mark: ClaimPhase::Ours,
        pod: pod.map(|state| TaskPodStatus {
            state,
            terminating: false,
            preempted: None,
        }),
        is_logged: true,
        status,
        stopping: false,
        was_stopped: false,
        listed: false,
        elsewhere: false,
        served: true,
        looks: 0,
        verdict: false,
    }
}

fn ended(exit: Option<i32>, reason: Option<&str>) -> PodState {
    PodState::Ended(End {
        exit,
        reason: reason.map(str::to_owned),
    })
}

fn failed(why: &str) -> TaskStep {
    TaskStep::ReportEnd(FinalStatus::Failed(why.to_owned()))
}

#[test]
fn every_end_of_a_pod_is_a_state_of_its_task() {
    let running = Some(Status::InProgress);
    for (status, pod, step) in [
        (
            running,
            ended(Some(0), None),
            TaskStep::ReportEnd(FinalStatus::Completed),
        ),
        (running, ended(Some(1), None), failed("exit code 1")),
        (
            running,
            ended(Some(137), Some("OOMKilled")),
            failed("exit code 137 (OOMKilled)"),
        ),
        (
            running,
            ended(None, Some("Evicted: low on memory")),
            failed("Evicted: low on memory"),
        ),
        (
            Some(Status::Queued),
            ended(None, Some("UnexpectedAdmissionError")),
            failed("the task's pod ended before the task started: UnexpectedAdmissionError"),
        ),
        (
            Some(Status::Queued),
            PodState::Unstartable("ImagePullBackOff: no such image".into()),
            failed("ImagePullBackOff: no such image"),
        ),
        (
            Some(Status::Completed),
            ended(Some(0), None),
            TaskStep::Delete,
        ),
        (Some(Status::Failed), ended(Some(1), None), TaskStep::Delete),
    ] {
        assert_eq!(
            next(&facts(status, Some(pod.clone()))),
            step,
            "{status:?} {pod:?}"
        );
    }
    let gone = next(&facts(running, None));
    assert_eq!(
        gone,
        failed("the task's pod is gone: the pod or its node was deleted")
    );
}

#[test]
fn a_pod_that_waits_is_said_and_never_failed() {
    let why = "Unschedulable: 0/2 nodes are available";
    let waits = facts(
        Some(Status::Queued),
        Some(PodState::Waits(Some(why.into()))),
    );
    assert_eq!(next(&waits), TaskStep::ReportWaiting(why.into()));
    assert_eq!(
        next(&facts(Some(Status::Queued), Some(PodState::Waits(None)))),
        TaskStep::Nothing
    );
}

#[test]
fn a_users_word_ends_the_run_and_is_left_as_it_is() {
    let runs = |status, verdict| TaskFacts {
        verdict,
        ..facts(status, Some(PodState::Runs))
    };
    for status in [
        Some(Status::Stopped),
        Some(Status::Created),
        None,
        Some(Status::Failed),
    ] {
        assert_eq!(next(&runs(status, true)), TaskStep::Delete, "{status:?}");
        assert_eq!(
            next(&facts(status, Some(PodState::Waits(None)))),
            TaskStep::Delete,
            "{status:?}"
        );
        assert_eq!(next(&facts(status, None)), TaskStep::Forget, "{status:?}");
    }
    let stopping = TaskFacts {
        stopping: true,
        ..runs(Some(Status::InProgress), true)
    };
    assert_eq!(next(&stopping), TaskStep::Delete);
    let deleted = TaskFacts {
        pod: None,
        ..stopping.clone()
    };
    assert_eq!(next(&deleted), TaskStep::ReportEnd(FinalStatus::Stopped));
    let callback = TaskFacts {
        verdict: false,
        ..stopping
    };
    assert_eq!(
        next(&callback),
        TaskStep::Nothing,
        "its abort callback is given its time"
    );
}

#[test]
fn a_task_that_its_user_queued_again_is_another_run() {
    for (listed, elsewhere) in [(true, false), (false, true)] {
        let again = TaskFacts {
            listed,
            elsewhere,
            ..facts(Some(Status::Queued), Some(PodState::Runs))
        };
        assert_eq!(next(&again), TaskStep::Delete);
        assert_eq!(next(&TaskFacts { pod: None, ..again }), TaskStep::Forget);
    }
}

#[test]
fn nothing_is_said_or_deleted_before_the_log_is_sent() {
    for status in [
        Status::InProgress,
        Status::Completed,
        Status::Failed,
        Status::Queued,
    ] {
        let unsent = TaskFacts {
            is_logged: false,
            ..facts(Some(status), Some(ended(Some(0), None)))
        };
        assert_eq!(next(&unsent), TaskStep::Nothing, "{status:?}");
    }
}

#[test]
fn a_task_of_a_queue_that_is_served_no_more_goes_back() {
    let lone = TaskFacts {
        served: false,
        ..facts(Some(Status::Queued), None)
    };
    assert_eq!(next(&lone), TaskStep::Return);
    let with_pod = TaskFacts {
        pod: facts(None, Some(PodState::Waits(None))).pod,
        ..lone
    };
    assert_eq!(
        next(&with_pod),
        TaskStep::Nothing,
        "a pod that is there runs it"
    );
}

#[test]
fn a_task_that_was_stopped_while_it_waited_is_not_run() {
    let stopped = TaskFacts {
        was_stopped: true,
        ..facts(Some(Status::Queued), None)
    };
    assert_eq!(next(&stopped), TaskStep::ReportEnd(FinalStatus::Stopped));
}

#[test]
fn a_task_whose_quota_kueue_takes_back_waits_again() {
    let stopped = |status, state, terminating| TaskFacts {
        pod: Some(TaskPodStatus {
            state,
            terminating,
            preempted: Some("to reclaim".to_owned()),
        }),
        ..facts(Some(status), None)
    };
    for state in [
        PodState::Runs,
        PodState::Waits(None),
        ended(Some(137), None),
    ] {
        for status in [Status::Queued, Status::InProgress] {
            let facts = stopped(status, state.clone(), true);
            assert_eq!(next(&facts), TaskStep::Return, "{facts:?}");
        }
    }
    let returning = |pod| TaskFacts {
        mark: ClaimPhase::Returning,
        pod,
        ..facts(Some(Status::InProgress), None)
    };
    let leaving = stopped(Status::InProgress, PodState::Runs, true).pod;
    assert_eq!(next(&returning(leaving)), TaskStep::Nothing);
    assert_eq!(next(&returning(None)), TaskStep::PutBack);
    // What its user wants, and an end that came first, count more.
    let aborted = TaskFacts {
        stopping: true,
        ..stopped(Status::InProgress, ended(Some(137), None), true)
    };
    assert_eq!(next(&aborted), TaskStep::ReportEnd(FinalStatus::Stopped));
    let done = stopped(Status::InProgress, ended(Some(0), None), true);
    assert_eq!(next(&done), TaskStep::ReportEnd(FinalStatus::Completed));
}

#[test]
fn a_pod_that_hangs_after_its_end_was_told_is_deleted() {
    for status in [Status::Completed, Status::Failed] {
        let mut hangs = facts(Some(status), Some(PodState::Runs));
        assert_eq!(next(&hangs), TaskStep::Nothing);
        hangs.verdict = true;
        assert_eq!(next(&hangs), TaskStep::Delete);
    }
}
