mod model;

use super::super::sight::End;
use super::*;

fn facts(status: Option<Status>, pod: Option<State>) -> Facts {
    Facts {
        mark: Mark::Ours,
        pod: pod.map(|state| Sight {
            state,
            terminating: false,
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

fn ended(exit: Option<i32>, reason: Option<&str>) -> State {
    State::Ended(End {
        exit,
        reason: reason.map(str::to_owned),
    })
}

fn failed(why: &str) -> Step {
    Step::Tell(Word::Failed(why.to_owned()))
}

#[test]
fn every_end_of_a_pod_is_a_state_of_its_task() {
    let running = Some(Status::InProgress);
    for (status, pod, step) in [
        (running, ended(Some(0), None), Step::Tell(Word::Completed)),
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
            State::Doomed("ImagePullBackOff: no such image".into()),
            failed("ImagePullBackOff: no such image"),
        ),
        (Some(Status::Completed), ended(Some(0), None), Step::Delete),
        (Some(Status::Failed), ended(Some(1), None), Step::Delete),
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
    let waits = facts(Some(Status::Queued), Some(State::Waits(Some(why.into()))));
    assert_eq!(next(&waits), Step::Say(why.into()));
    assert_eq!(
        next(&facts(Some(Status::Queued), Some(State::Waits(None)))),
        Step::Nothing
    );
}

#[test]
fn a_users_word_ends_the_run_and_is_left_as_it_is() {
    let runs = |status, verdict| Facts {
        verdict,
        ..facts(status, Some(State::Runs))
    };
    for status in [
        Some(Status::Stopped),
        Some(Status::Created),
        None,
        Some(Status::Failed),
    ] {
        assert_eq!(next(&runs(status, true)), Step::Delete, "{status:?}");
        assert_eq!(
            next(&facts(status, Some(State::Waits(None)))),
            Step::Delete,
            "{status:?}"
        );
        assert_eq!(next(&facts(status, None)), Step::Forget, "{status:?}");
    }
    let stopping = Facts {
        stopping: true,
        ..runs(Some(Status::InProgress), true)
    };
    assert_eq!(next(&stopping), Step::Delete);
    let deleted = Facts {
        pod: None,
        ..stopping.clone()
    };
    assert_eq!(next(&deleted), Step::Tell(Word::Stopped));
    let callback = Facts {
        verdict: false,
        ..stopping
    };
    assert_eq!(
        next(&callback),
        Step::Nothing,
        "its abort callback is given its time"
    );
}

#[test]
fn a_task_that_its_user_queued_again_is_another_run() {
    for (listed, elsewhere) in [(true, false), (false, true)] {
        let again = Facts {
            listed,
            elsewhere,
            ..facts(Some(Status::Queued), Some(State::Runs))
        };
        assert_eq!(next(&again), Step::Delete);
        assert_eq!(next(&Facts { pod: None, ..again }), Step::Forget);
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
        let unsent = Facts {
            is_logged: false,
            ..facts(Some(status), Some(ended(Some(0), None)))
        };
        assert_eq!(next(&unsent), Step::Nothing, "{status:?}");
    }
}

#[test]
fn a_task_of_a_queue_that_is_served_no_more_goes_back() {
    let lone = Facts {
        served: false,
        ..facts(Some(Status::Queued), None)
    };
    assert_eq!(next(&lone), Step::Return);
    let with_pod = Facts {
        pod: facts(None, Some(State::Waits(None))).pod,
        ..lone
    };
    assert_eq!(
        next(&with_pod),
        Step::Nothing,
        "a pod that is there runs it"
    );
}

#[test]
fn a_task_that_was_stopped_while_it_waited_is_not_run() {
    let stopped = Facts {
        was_stopped: true,
        ..facts(Some(Status::Queued), None)
    };
    assert_eq!(next(&stopped), Step::Tell(Word::Stopped));
}
