//! When a job whose memory is in host memory gets its GPUs again.

use divvy_core::project::Quota;
use divvy_core::resize::resume::{plan_resume, resume_order};
use divvy_core::{
    AllocatedJob, Amount, Bytes, Gpus, Grant, JobId, Mode, PendingJob, Project, Queue, QueueName,
    QueueSpec, SchedulingClass, Share, Snapshot, invariants, plan, why,
};

/// The first label of a share on a GPU.
fn label(index: u32, share: Share) -> String {
    match share {
        Share::FULL => format!("gpu{index}"),
        _ => format!("gpu{index}{}a", share.to_string().trim_start_matches('0')),
    }
}

/// Two GPUs, a job for each `GPU:SHARE`, and those that wait.
fn node(held: &[&str], waiting: &[&str]) -> Snapshot {
    let gpus = [0, 1].map(crate::node::gpu).to_vec();
    let grant = |text: &str| {
        let (index, share) = text.split_once(':').expect("GPU:SHARE");
        let share: Share = share.parse().expect("a share");
        let gpu = &gpus[index.parse::<usize>().expect("an index")];
        Grant {
            gpu: gpu.uuid.clone(),
            index: gpu.index,
            memory: gpu.memory_of(share),
            share,
            label: label(gpu.index, share),
            mig: None,
        }
    };
    let queue = QueueName::default_queue();
    let held = (1..).zip(held).map(|(job, text)| {
        let grants = text.split(',').map(grant).collect();
        AllocatedJob::new(JobId(job), queue.clone(), grants)
    });
    let held = held.collect();
    let asks = |(job, text): (u64, &&str)| {
        PendingJob::new(
            JobId(job),
            Amount::from_gpu_flag(text).expect("an amount").into(),
        )
    };
    Snapshot {
        gpus,
        held,
        queues: vec![Queue {
            spec: QueueSpec::open(queue),
            waiting: (11..).zip(waiting).map(asks).collect(),
        }],
        ..Snapshot::default()
    }
}

/// The same with these jobs to go on, in this order.
fn due(mut node: Snapshot, jobs: &[u64]) -> Snapshot {
    for (since, job) in (0..).zip(jobs) {
        let mut held = node.held.iter_mut();
        held.find(|held| held.job.0 == *job)
            .expect("a result")
            .resuming_since = Some(since);
    }
    node
}

fn resume(node: &Snapshot, job: u64) -> Result<String, String> {
    let grants = plan_resume(node, JobId(job), &[]).map_err(|lacks| lacks.to_string())?;
    let labels: Vec<&str> = grants.iter().map(|grant| grant.label.as_str()).collect();
    Ok(labels.join(" "))
}

#[test]
fn jobs_resume_by_priority_then_within_quota_then_by_age() {
    let mut node = due(
        node(&["0:0.5", "0:0.5", "1:0.5", "1:0.5"], &[]),
        &[1, 2, 3, 4],
    );
    let order =
        |node: &Snapshot| -> Vec<u64> { resume_order(node).into_iter().map(|job| job.0).collect() };
    assert_eq!(order(&node), [1, 2, 3, 4]);
    // The project of the first two has a quota for none of them.
    let owner = |name: &str| SchedulingClass {
        project: Some(name.parse().expect("a name")),
        preemptible: true,
        ..SchedulingClass::default()
    };
    for (held, name) in node.held.iter_mut().zip(["poor", "poor", "rich", "rich"]) {
        held.owner = owner(name);
    }
    node.projects = [("poor", 0), ("rich", 1)]
        .map(|(name, gpus)| {
            let mut project = Project::new(name.parse().expect("a name"));
            project.quota.gpus = Gpus::whole(gpus);
            project
        })
        .to_vec();
    assert_eq!(order(&node), [3, 4, 1, 2]);
    node.held[1].owner.priority = 1;
    assert_eq!(order(&node), [2, 3, 4, 1]);
    // The room of the first one is reserved against the others.
    assert!(resume(&node, 2).is_ok() && resume(&node, 1).is_ok());
}

#[test]
fn a_job_has_its_gpus_again_once_all_of_them_have_room() {
    let node = due(node(&["0:0.5,1:0.5", "0:0.75"], &[]), &[1]);
    assert_eq!(
        resume(&node, 1).expect_err("it has no room"),
        "room on GPU 0: 0.25 free, 0.5 needed, 20.0 GiB free, 40.0 GiB needed (there: #2)"
    );
    let lacks = plan_resume(&node, JobId(1), &[]).expect_err("it has no room");
    assert!(lacks.keeps_room());
    let mut ended = node.clone();
    ended.held.pop();
    assert_eq!(resume(&ended, 1).expect("a result"), "gpu0.5a gpu1.5a");
    assert_eq!(invariants::check(&node), Ok(()), "it holds nothing yet");
}

#[test]
fn a_label_that_is_taken_meanwhile_becomes_another() {
    let node = due(node(&["0:0.5", "0:0.5"], &[]), &[1]);
    assert_eq!(resume(&node, 1).expect("a result"), "gpu0.5b");
}

#[test]
fn no_job_starts_in_kept_room_and_the_reason_names_the_job_with_the_room() {
    let full = node(&["0:0.5", "1:1", "0:0.75"], &["0.25", "1"]);
    assert_eq!(
        plan(&due(full.clone(), &[])).starts.len(),
        0,
        "it is over-full"
    );
    let one = due(full, &[1]);
    assert!(plan(&one).starts.is_empty());
    let why_not = why(&one, JobId(11)).expect("a result");
    assert_eq!(
        why_not.summary,
        "needs 0.25 of a GPU; 2 of 2 GPUs in use; room is reserved for #1, which is resuming"
    );
    assert_eq!(
        why_not.gpus[0].failed.last().expect("a result"),
        "room is reserved for #1, which is resuming"
    );
    let holders: Vec<String> = (why_not.gpus[0].holders.iter().map(ToString::to_string)).collect();
    assert_eq!(holders, ["#1 default 0.5, resuming", "#3 default 0.75"]);
    assert_eq!(why_not.gpus[1].failed, ["whole GPU held by #2"]);
    // Where only its place is kept, nothing is in use.
    let kept = due(node(&["0:0.5"], &["1", "1"]), &[1]);
    assert_eq!(plan(&kept).starts[0].grants[0].index, 1);
    let why_not = why(&kept, JobId(12)).expect("a result");
    assert_eq!(
        why_not.gpus[0].failed,
        ["room is reserved for #1, which is resuming"]
    );
}

#[test]
fn the_suspended_job_that_waited_longest_comes_first_and_none_waits_without_end() {
    let both = due(node(&["0:0.75", "0:0.5"], &[]), &[2, 1]);
    assert_eq!(resume(&both, 2).expect("a result"), "gpu0.5a");
    assert_eq!(
        resume(&both, 1).expect_err("it has no room"),
        "room on GPU 0: 0.5 free, 0.75 needed, 40.0 GiB free, 60.0 GiB needed, room is reserved for #2, which is resuming (there: #2)"
    );
}

#[test]
fn memory_of_strangers_is_in_the_way() {
    let mut node = due(node(&["0:0.5", "1:1"], &[]), &[1, 2]);
    node.gpus[0].unmanaged = Bytes::gib(50);
    assert!(
        resume(&node, 1)
            .expect_err("it has no room")
            .contains("outside Divvy hold 50.0 GiB")
    );
    node.gpus[0].unmanaged = Bytes::ZERO;
    // Of a whole GPU the job has to have what it used, and may come to less than it had.
    node.gpus[1].unmanaged = Bytes::gib(2);
    let uses = |gib| plan_resume(&node, JobId(2), &[Bytes::gib(gib)]).is_ok();
    assert!(uses(78) && !uses(79));
}

#[test]
fn a_gpu_that_is_used_otherwise_by_now_does_not_take_it_back() {
    let parked = due(node(&["0:0.5"], &[]), &[1]);
    let mode = |mode| {
        let mut changed = parked.clone();
        changed.gpus[0].mode = mode;
        resume(&changed, 1)
    };
    for unserved in [Mode::Unmanaged, Mode::Mig] {
        let said = mode(unserved).expect_err("it has no room");
        assert_eq!(said, "room on GPU 0: it is no longer available to jobs");
        let mut changed = parked.clone();
        changed.gpus[0].mode = unserved;
        let lacks = plan_resume(&changed, JobId(1), &[]).expect_err("it has no room");
        assert!(!lacks.keeps_room());
    }
    assert!(
        mode(Mode::Exclusive)
            .expect_err("it has no room")
            .contains("whole GPUs only")
    );
    assert!(mode(Mode::Shared).is_ok());
    let mut gone = parked;
    gone.gpus.remove(0);
    assert!(resume(&gone, 1).is_err());
}

#[test]
fn the_limit_of_a_project_counts_at_a_resume_and_no_job_is_stopped_in_its_place() {
    let mut node = node(&["0:0.5", "1:1"], &["1"]);
    let mut vision = Project::new("vision".parse().expect("a result"));
    vision.quota = Quota {
        gpus: Gpus::whole(1),
        memory: None,
    };
    vision.limit.gpus = Some(Gpus::whole(1));
    node.projects = vec![vision];
    let owner = SchedulingClass {
        project: Some("vision".parse().expect("a result")),
        preemptible: true,
        ..SchedulingClass::default()
    };
    for held in &mut node.held {
        held.owner = owner.clone();
    }
    let parked = due(node, &[1]);
    assert_eq!(
        resume(&parked, 1).expect_err("it has no room"),
        "its project: vision's limit is 1 GPU; 1 in use, 0.5 more needed"
    );
    let lacks = plan_resume(&parked, JobId(1), &[]).expect_err("it has no room");
    assert!(!lacks.keeps_room(), "it may lack that without end");
    let stopped: Vec<u64> = plan(&parked).preempts.iter().map(|one| one.job.0).collect();
    assert!(!stopped.contains(&1), "{stopped:?}");
}
