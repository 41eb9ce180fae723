//! The rules of the stock ClearML agent's dynamic GPUs, one test each: P for parsing, R for placement. The T cases are
//! scenarios. Where Divvy differs on purpose, the test says so.

use crate::node;

use divvy_core::{
    Amount, GpuSelection, Mode, Order, QueueSpec, QueueWords, Request, Share, can_ever_fit,
    parse_gpus, parse_queues, plan,
};
use node::{Node, amount, gpu};

/// A request for an amount on some GPUs only.
fn on(indices: &[u32], text: &str) -> Request {
    Request {
        on: indices.to_vec(),
        ..amount(text).into()
    }
}

fn queue(token: &str) -> Result<Amount, String> {
    let spec: QueueSpec = token
        .parse()
        .map_err(|error: divvy_core::queue::QueueError| error.to_string())?;
    Ok(spec.amount.expect("an amount"))
}

fn refused(token: &str, text: &str) {
    assert_eq!(queue(token), Err(format!("{text}: \"{token}\"")));
}

#[test]
fn p1_a_queue_is_a_name_and_an_amount_split_at_the_last_equals_sign() {
    refused(
        "half_gpu",
        "queue must be in format <queue_name>=<num_gpus>",
    );
    let spec: QueueSpec = "team=a=0.5".parse().unwrap();
    assert_eq!(
        (spec.name.as_str(), spec.amount),
        ("team=a", Some(amount("0.5")))
    );
    assert_eq!(queue("q=1-4"), Ok(amount("1-4")));
}

#[test]
fn p2_an_amount_is_above_zero() {
    for token in ["q=0", "q=0.0", "q=-1", "q=-0.5", "q=0-2"] {
        refused(token, "Parsing min/max number of gpus <= 0 is not allowed");
    }
}

#[test]
fn p3_a_fraction_is_not_above_one() {
    for token in ["q=1.25", "q=2.5", "q=1-2.5"] {
        refused(
            token,
            "Parsing min/max number of gpus, fractional gpu cannot be > 1",
        );
    }
    assert!(Amount::from_gpu_flag("1.25").is_err());
}

#[test]
fn p4_a_queues_fraction_is_a_multiple_of_an_eighth_and_a_jobs_of_a_thousandth() {
    for eighths in 1..8_u16 {
        let share = Share::from_thousandths(eighths * 125).unwrap();
        assert_eq!(queue(&format!("q={share}")), Ok(Amount::Share(share)));
    }
    for token in ["q=0.3", "q=0.1", "q=0.126"] {
        refused(token, "a queue's fraction must be a multiple of 0.125");
    }
    assert_eq!(
        Amount::from_gpu_flag("0.3").map(|amount| amount.to_string()),
        Ok("0.3".to_owned())
    );
    assert!(Amount::from_gpu_flag("0.0005").is_err());
}

#[test]
fn p5_one_is_a_whole_gpu_however_it_is_written() {
    for token in ["q=1", "q=1.0", "q=1-1"] {
        assert_eq!(queue(token), Ok(Amount::ONE_GPU));
    }
}

#[test]
fn p6_gpus_are_ranges_lists_two_words_or_all() {
    let indices = |words: &[&str]| match parse_gpus(words) {
        Ok(GpuSelection::Indices(indices)) => indices,
        other => panic!("{words:?} gave {other:?}"),
    };
    assert_eq!(indices(&["0-2"]), [0, 1, 2]);
    assert_eq!(indices(&["0,1,2"]), [0, 1, 2]);
    assert_eq!(indices(&["0,", "1"]), [0, 1]);
    assert_eq!(
        indices(&["5,0-2"]),
        [0, 1, 2, 5],
        "mixed forms are accepted, unlike by the stock agent"
    );
    assert_eq!(parse_gpus(&["all"]), Ok(GpuSelection::All), "likewise");
    for words in [
        &[][..],
        &[""],
        &[","],
        &["x"],
        &["0-"],
        &["-1"],
        &["2-0"],
        &["1,1"],
        &["0:0,0:1"],
        &["0-4000000000"],
    ] {
        assert!(parse_gpus(words).is_err(), "{words:?}");
    }
    let all: Vec<_> = [2, 0, 1].map(gpu).into();
    let here = || all.iter().map(|gpu| (gpu.index, &gpu.uuid));
    let unknown = parse_gpus(&["0-3"]).unwrap().check(here()).unwrap_err();
    assert_eq!(
        unknown.to_string(),
        "there is no GPU 3 here: there are 0, 1, 2"
    );
    let (first, last) = (all[0].uuid.to_string(), all[2].uuid.to_string());
    let uuids = parse_gpus(&[format!("{first},{last}")]).unwrap();
    assert_eq!(uuids.check(here()), Ok(()));
    assert_eq!(parse_gpus(&[uuids.to_string()]), Ok(uuids.clone()));
    let named = here().filter(|(index, uuid)| uuids.names(*index, uuid));
    assert_eq!(named.map(|(index, _)| index).collect::<Vec<_>>(), [2, 1]);
    for words in [
        &[&*first, "0"][..],
        &["0", &*first],
        &[&*first, &*first],
        &["GPU-1"],
    ] {
        assert!(parse_gpus(words).is_err(), "{words:?}");
    }
}

#[test]
fn p7_an_amount_beyond_the_node_is_an_error_and_not_a_wait() {
    let gpus: Vec<_> = (0..3).map(gpu).collect();
    for (token, fits) in [
        ("q=3", true),
        ("q=4", false),
        ("q=3-8", true),
        ("q=4-8", false),
        ("q=0.5", true),
    ] {
        let request = Request::from(queue(token).unwrap());
        assert_eq!(can_ever_fit(&gpus, &request).is_ok(), fits, "{token}");
    }
}

#[test]
fn p8_fractions_need_no_container_mode_wherever_they_are_listed() {
    for words in [["half=0.5", "single=1"], ["single=1", "half=0.5"]] {
        assert!(parse_queues(&words, QueueWords::Amounts, false).is_ok());
    }
}

#[test]
fn p9_dynamic_gpus_and_services_mode_exclude_each_other() {
    let error = parse_queues(&["half=0.5"], QueueWords::Amounts, true).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Combining --dynamic-gpus and --services-mode is not supported"
    );
    assert!(parse_queues(&["half"], QueueWords::Names, true).is_ok());
}

#[test]
fn p10_without_dynamic_gpus_the_equals_sign_is_part_of_the_name() {
    let specs = parse_queues(&["half=0.5"], QueueWords::Names, false).unwrap();
    assert_eq!(
        (specs[0].name.as_str(), specs[0].amount),
        ("half=0.5", None)
    );
}

#[test]
fn r1_queues_are_served_in_listed_order_and_from_the_first_after_each_start() {
    let mut node = Node::new(1, "a=0.25 b=0.25");
    let (b1, a1, a2) = (node.submit("b"), node.submit("a"), node.submit("a"));
    assert_eq!(node.start(), [a1, a2, b1]);
}

#[test]
fn r2_a_queue_is_first_in_first_out() {
    let mut node = Node::new(1, "q=0.5");
    let jobs: Vec<u64> = (0..4).map(|_| node.submit("q")).collect();
    assert_eq!(node.start(), jobs[..2]);
    node.end(jobs[1]);
    assert_eq!(node.start(), jobs[2..3]);
}

#[test]
fn r3_a_head_that_does_not_fit_stops_every_queue_below() {
    let mut node = Node::new(2, "dual=2 half=0.5");
    let half = node.submit("half");
    assert_eq!(node.start(), [half]);
    let (dual, late) = (node.submit("dual"), node.submit("half"));
    assert_eq!(node.start(), [0; 0]);
    assert_eq!(
        node.reason(late),
        format!("behind #{dual} in queue dual, which {}", node.reason(dual))
    );
}

#[test]
fn r3_backfill_starts_a_lower_job_only_where_the_head_cannot_use_the_gpu() {
    let mut node = Node::new(2, "").backfilling();
    let first = node.ask("0.25");
    assert_eq!(node.start(), [first]);
    let _head = node.submit_request("default", on(&[0], "1"));
    let there = node.submit_request("default", on(&[0], "1"));
    let elsewhere = node.submit_request("default", on(&[1], "1"));
    assert_eq!(node.start(), [elsewhere]);
    assert!(
        node.reason(there)
            .starts_with("needs 1 whole GPU, GPU 0 only")
    );
}

/// Which of these requests start behind a head that waits, beside these holders on three GPUs.
fn backfilled(held: &[&str], head: &str, requests: &[&str]) -> Vec<bool> {
    let starts = |request: &&str| {
        let mut node = Node::new(3, "").backfilling();
        for text in held {
            node.ask(text);
        }
        node.start();
        node.ask(head);
        assert_eq!(node.start(), [0; 0], "the head waits");
        let job = node.ask(request);
        node.start() == [job]
    };
    requests.iter().map(starts).collect()
}

#[test]
fn r3_backfill_fills_a_gpu_that_the_head_does_not_need_once_a_job_on_several_gpus_ends() {
    // #1 ends on both its GPUs at once, and they are enough for the head.
    assert_eq!(backfilled(&["2"], "2", &["1", "0.5"]), [true, true]);
    assert_eq!(backfilled(&["2x0.75"], "2x0.5", &["1"]), [true]);
    // One GPU of two jobs, and the free one: the end of either lets the head start there.
    assert_eq!(backfilled(&["1", "1"], "2", &["1", "0.125"]), [false; 2]);
    // The head needs all three.
    assert_eq!(backfilled(&["2"], "3", &["1", "0.125"]), [false; 2]);
    // With fewer GPUs than now a range would start smaller.
    assert_eq!(backfilled(&["2"], "2-3", &["1"]), [false]);
    // #2 shares a GPU with #1: once #1 alone ends, the head needs the free GPU.
    let shared = ["2x0.5", "0.5", "0.25"];
    assert_eq!(backfilled(&shared, "2", &["1"]), [false]);
}

#[test]
fn r3_backfill_looks_past_64_different_requests_and_no_further() {
    for (between, starts) in [(62, true), (63, false)] {
        let mut node = Node::new(2, "").backfilling();
        let first = node.submit_request("default", on(&[0], "0.25"));
        assert_eq!(node.start(), [first]);
        let head = node.submit_request("default", on(&[0], "1"));
        for mib in 1..=between {
            node.submit_request("default", on(&[0], &format!("{mib}MiB")));
        }
        let elsewhere = node.submit_request("default", on(&[1], "0.5"));
        assert_eq!(node.start().contains(&elsewhere), starts);
        if !starts {
            assert!(
                node.reason(elsewhere)
                    .starts_with(&format!("behind #{head} in queue default"))
            );
        }
    }
}

#[test]
fn r4_order_fairness_goes_on_with_the_next_queue_and_still_stops_at_a_head() {
    let mut node = Node::new(1, "a=0.25 b=0.5 c=0.25").fair();
    let a: Vec<u64> = (0..3).map(|_| node.submit("a")).collect();
    let b: Vec<u64> = (0..2).map(|_| node.submit("b")).collect();
    assert_eq!(node.start(), [a[0], b[0], a[1]]);
    assert_eq!(node.snapshot.order, Order::Fairness);
    assert!(
        node.reason(a[2])
            .starts_with(&format!("behind #{} in queue b", b[1]))
    );
    node.end(a[0]);
    node.end(a[1]);
    assert_eq!(node.start(), [b[1]]);
}

#[test]
fn r5_whole_jobs_take_wholly_free_gpus_lowest_index_first() {
    let mut node = Node::new(4, "");
    let part = node.submit_request("default", on(&[1], "0.125"));
    let dual = node.ask("2");
    assert_eq!(node.start(), [part, dual]);
    assert_eq!(node.labels(dual), "gpu0 gpu2");
}

#[test]
fn r6_a_fraction_goes_where_the_least_is_left_and_is_never_spread() {
    let mut node = Node::new(3, "");
    for (index, share) in [(0, "0.125"), (1, "0.375"), (2, "0.375")] {
        node.submit_request("default", on(&[index], share));
    }
    node.start();
    let (tie, tight) = (node.ask("0.625"), node.ask("0.5"));
    assert_eq!(node.start(), [tie, tight]);
    assert_eq!(
        (node.labels(tie).as_str(), node.labels(tight).as_str()),
        ("gpu1.625a", "gpu2.5a")
    );
    // 0.875 and 0.125 are left, one GPU each.
    let (most, spread) = (node.ask("0.75"), node.ask("0.25"));
    assert_eq!(node.start(), [most]);
    assert_eq!(
        node.reason(spread),
        "needs 0.25 of a GPU; 2.75 of 3 GPUs in use, at most 0.125 free on one GPU"
    );
}

#[test]
fn r6_equal_shares_of_several_gpus_go_to_different_ones() {
    let mut node = Node::new(3, "");
    let job = node.ask("2x0.5");
    assert_eq!(node.start(), [job]);
    assert_eq!(node.labels(job), "gpu0.5a gpu1.5a");
}

#[test]
fn r7_fractions_of_a_gpu_never_exceed_it_and_are_free_again_at_once() {
    let mut node = Node::new(1, "q=0.375");
    let jobs: Vec<u64> = (0..3).map(|_| node.submit("q")).collect();
    assert_eq!(node.start(), jobs[..2]);
    node.end(jobs[0]);
    assert_eq!(node.start(), jobs[2..]);
}

#[test]
fn r8_a_range_takes_as_many_whole_gpus_as_are_free_and_keeps_them() {
    let mut node = Node::new(4, "most=2-3");
    let first = node.submit("most");
    assert_eq!(node.start(), [first]);
    assert_eq!(node.labels(first), "gpu0 gpu1 gpu2");
    let second = node.submit("most");
    assert_eq!(node.start(), [0; 0]);
    assert_eq!(
        node.reason(second),
        "needs 2 to 3 whole GPUs; 3 of 4 GPUs in use, room on 1"
    );
    node.end(first);
    assert_eq!(node.start(), [second]);
    assert_eq!(
        node.labels(second),
        "gpu0 gpu1 gpu2",
        "fixed for its life, with GPU 3 free or not"
    );
}

#[test]
fn r9_a_running_job_is_neither_stopped_nor_moved() {
    let mut node = Node::new(1, "high=1 low=0.5");
    let low = node.submit("low");
    node.start();
    node.submit("high");
    let before = node.snapshot.held.clone();
    assert_eq!(node.start(), [0; 0]);
    assert_eq!(node.snapshot.held, before);
    assert_eq!(node.labels(low), "gpu0.5a");
}

#[test]
fn r10_a_half_queue_on_two_gpus_runs_four_jobs() {
    let mut node = Node::new(2, "half=0.5");
    let jobs: Vec<u64> = (0..5).map(|_| node.submit("half")).collect();
    assert_eq!(node.start(), jobs[..4]);
}

#[test]
fn exclusive_gpus_take_whole_jobs_only_and_unmanaged_ones_none() {
    let mut node = Node::new(3, "");
    node.snapshot.gpus[0].mode = Mode::Unmanaged;
    node.snapshot.gpus[1].mode = Mode::Exclusive;
    let (part, whole) = (node.ask("0.5"), node.ask("1"));
    assert_eq!(node.start(), [part, whole]);
    assert_eq!(
        (node.labels(part).as_str(), node.labels(whole).as_str()),
        ("gpu2.5a", "gpu1")
    );
}

#[test]
fn foreign_memory_is_subtracted_and_a_whole_job_tolerates_a_tenth_of_it() {
    use divvy_core::Bytes;
    let mut node = Node::new(2, "");
    node.snapshot.gpus[0].unmanaged = Bytes::gib(8);
    node.snapshot.gpus[1].unmanaged = Bytes::gib(9);
    let whole = node.ask("1");
    assert_eq!(node.start(), [whole]);
    assert_eq!(node.snapshot.held[0].grants[0].memory, Bytes::gib(72));
    node.ask("1");
    let plan = plan(&node.snapshot);
    assert_eq!(
        plan.waits[0].reason.to_string(),
        "needs 1 whole GPU; 1 of 2 GPUs in use; processes outside Divvy hold 9.0 GiB of GPU 1"
    );
}

#[test]
fn foreign_memory_of_several_gpus_takes_one_sentence() {
    use divvy_core::Bytes;
    let reason = |held: &[u64]| {
        let mut node = Node::new(u32::try_from(held.len()).unwrap(), "");
        for (gpu, gib) in node.snapshot.gpus.iter_mut().zip(held) {
            gpu.unmanaged = Bytes::gib(*gib);
        }
        node.ask("1");
        let reason = plan(&node.snapshot).waits[0].reason.to_string();
        let (_, outside) = reason.split_once("outside Divvy hold ").unwrap();
        outside.to_owned()
    };
    assert_eq!(reason(&[40, 40, 40]), "40.0 GiB of each of GPUs 0, 1, 2");
    assert_eq!(reason(&[40, 9]), "40.0 GiB of GPU 0, 9.0 GiB of GPU 1");
    assert_eq!(
        reason(&[40, 41, 42, 43, 44, 45]),
        "40.0 GiB of GPU 0, 41.0 GiB of GPU 1, 42.0 GiB of GPU 2, 43.0 GiB of GPU 3, and memory of 2 more"
    );
}

#[test]
fn letters_of_living_slices_are_kept_when_a_snapshot_is_made_anew() {
    let mut node = Node::new(1, "half=0.5");
    let (first, second) = (node.submit("half"), node.submit("half"));
    node.start();
    node.end(first);
    node.snapshot = node.snapshot.clone();
    let third = node.submit("half");
    node.start();
    assert_eq!(
        (node.labels(second).as_str(), node.labels(third).as_str()),
        ("gpu0.5b", "gpu0.5a")
    );
}
