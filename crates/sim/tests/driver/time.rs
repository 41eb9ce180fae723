//! Simulated time, seen through events, utilisation and the wall clock.

use crate::launch::load;
use crate::machine::{Client, Machine};
use std::time::{Duration, Instant};

fn ready(client: &mut Client, machine: &Machine, kernels: &[&str]) {
    client.start();
    load(client, machine);
    for kernel in kernels {
        client.ok(&[&format!(
            "cuModuleGetFunction &{kernel} $module \"{kernel}\""
        )]);
    }
    client.ok(&["cuEventCreate &begin 0", "cuEventCreate &end 0"]);
}

/// Milliseconds between the events `begin` and `end`.
fn elapsed(client: &mut Client) -> f32 {
    client.ok(&["cuEventElapsedTime &ms $begin $end"]);
    f32::from_ne_bytes(client.bytes("ms")[..4].try_into().expect("four"))
}

const LAUNCH: &str = "1 1 1 1 1 1 0 0 0 0";

#[test]
fn launches_do_not_wait_and_kernels_take_their_time() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.with_virtual_clock().client();
    ready(&mut client, &machine, &["sim_busy_ms_5", "sim_busy_us_250"]);
    client.ok(&[
        "cuEventRecord $begin 0",
        &format!("again 10 cuLaunchKernel $sim_busy_ms_5 {LAUNCH}"),
        "cuEventRecord $end 0",
    ]);
    assert_eq!(client.call("cuEventQuery $end"), 600);
    assert_eq!(client.call("cuEventElapsedTime &ms $begin $end"), 600);
    client.ok(&["cuEventSynchronize $end"]);
    assert_eq!(elapsed(&mut client), 50.0);
    // Far more than the queue holds: the launches wait, and an event recorded before them keeps its time.
    client.ok(&[
        "cuEventRecord $begin 0",
        &format!("again 5000 cuLaunchKernel $sim_busy_us_250 {LAUNCH}"),
        "cuEventRecord $end 0",
        "cuCtxSynchronize",
    ]);
    assert_eq!(elapsed(&mut client), 1250.0);
}

#[test]
fn the_real_clock_passes_while_kernels_run() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    ready(&mut client, &machine, &["sim_busy_ms_5"]);
    let start = Instant::now();
    client.ok(&[
        "cuEventRecord $begin 0",
        &format!("again 10 cuLaunchKernel $sim_busy_ms_5 {LAUNCH}"),
        "cuEventRecord $end 0",
        "cuEventSynchronize $end",
    ]);
    let ms = elapsed(&mut client);
    assert!(
        ms >= 50.0 && start.elapsed() >= Duration::from_millis(50),
        "{ms} ms"
    );
}

/// The table of the design between three processes on a virtual clock.
#[test]
fn three_processes_share_a_gpu_as_in_the_design_table() {
    let machine = Machine::new("l4-24gb:1");
    let mut clients = [(); 3].map(|()| machine.with_virtual_clock().client());
    for client in &mut clients {
        ready(
            client,
            &machine,
            &[
                "sim_busy_ms_1",
                "sim_busy_us_200",
                "sim_busy_ms_5",
                "sim_idle_ms_45",
            ],
        );
        client.ok(&["cuEventRecord $begin 0"]);
    }
    let bursts = 400;
    let work: [Vec<String>; 3] = [
        vec![format!(
            "again 60000 cuLaunchKernel $sim_busy_ms_1 {LAUNCH}"
        )],
        vec![format!(
            "again 300000 cuLaunchKernel $sim_busy_us_200 {LAUNCH}"
        )],
        (0..bursts)
            .flat_map(|_| {
                let launch = |kernel| format!("cuLaunchKernel ${kernel} {LAUNCH}");
                [
                    launch("sim_busy_ms_5"),
                    "cuCtxSynchronize".into(),
                    launch("sim_idle_ms_45"),
                    "cuCtxSynchronize".into(),
                ]
            })
            .collect(),
    ];
    for (client, orders) in clients.iter_mut().zip(&work) {
        for order in orders {
            client.tell(order);
        }
        client.tell("cuEventRecord $end 0");
    }
    // The third process ends first; its share is its work over the time it took.
    for _ in 0..=work[2].len() {
        assert_eq!(clients[2].answer(), "0");
    }
    let third = elapsed(&mut clients[2]);
    let share = 100.0 * (5 * bursts) as f32 / third;
    assert!((share - 8.2).abs() < 1.0, "{share} %");
    clients.into_iter().for_each(Client::kill);
}

#[test]
fn nvml_sees_which_process_is_busy() {
    let machine = Machine::new("l4-24gb:2");
    let mut client = machine.with_virtual_clock().client();
    ready(&mut client, &machine, &["sim_busy_ms_5"]);
    client.ok(&[
        "nvmlInit_v2",
        "nvmlDeviceGetHandleByIndex_v2 0 &first",
        "nvmlDeviceGetHandleByIndex_v2 1 &second",
    ]);
    client.ok(&["nvmlDeviceGetUtilizationRates $first &rates"]);
    assert_eq!(client.value("rates") as u32, 0);
    client.ok(&[
        &format!("again 150 cuLaunchKernel $sim_busy_ms_5 {LAUNCH}"),
        "cuCtxSynchronize",
        "nvmlDeviceGetUtilizationRates $first &rates",
    ]);
    assert_eq!(client.value("rates") as u32, 100);
    client.ok(&["nvmlDeviceGetUtilizationRates $second &rates"]);
    assert_eq!(client.value("rates") as u32, 0);
    client.set("count", 8u64);
    client.ok(&["nvmlDeviceGetProcessUtilization $first &samples &count 0"]);
    let (samples, pid) = (client.bytes("samples"), client.pid());
    assert_eq!(
        (
            client.value("count"),
            u32::from_ne_bytes(samples[..4].try_into().expect("four"))
        ),
        (1, pid)
    );
    assert!(u32::from_ne_bytes(samples[16..20].try_into().expect("four")) > 50);
}

#[test]
fn host_functions_run_after_what_was_issued_before_them() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    ready(&mut client, &machine, &["sim_busy_ms_5"]);
    client.ok(&[
        "address &function abs",
        "cuEventRecord $begin 0",
        &format!("cuLaunchKernel $sim_busy_ms_5 {LAUNCH}"),
    ]);
    client.ok(&[
        "cuLaunchHostFunc 0 $function 5",
        "cuEventRecord $end 0",
        "cuStreamSynchronize 0",
    ]);
    assert!(elapsed(&mut client) >= 5.0);
}

/// Two ranks of a collective on one GPU: the first to come spins through its turns, and neither waits for ever.
#[test]
fn a_collective_of_two_processes_ends_when_both_have_come() {
    let machine = Machine::new("l4-24gb:1");
    let mut ranks = [(); 2].map(|()| machine.with_virtual_clock().client());
    for rank in &mut ranks {
        ready(rank, &machine, &["sim_rendezvous_2", "sim_busy_ms_5"]);
    }
    let meet = format!("cuLaunchKernel $sim_rendezvous_2 {LAUNCH}");
    ranks[0].ok(&["cuEventRecord $begin 0", &meet, "cuEventRecord $end 0"]);
    ranks[0].tell("cuEventSynchronize $end");
    let late = format!("again 4 cuLaunchKernel $sim_busy_ms_5 {LAUNCH}");
    ranks[1].ok(&[
        "cuEventRecord $begin 0",
        &late,
        &meet,
        "cuEventRecord $end 0",
    ]);
    ranks[1].ok(&["cuEventSynchronize $end"]);
    assert_eq!(ranks[0].answer(), "0");
    // 20 ms of work, in turns with a process that spins.
    let took = ranks.each_mut().map(elapsed);
    assert!(took.iter().all(|ms| (38.0..=42.0).contains(ms)), "{took:?}");
}

#[test]
fn a_collective_of_two_gpus_ends_on_both_at_once() {
    let machine = Machine::new("l4-24gb:2");
    let mut client = machine.with_virtual_clock().client();
    client.start();
    client.ok(&[
        "cuDevicePrimaryCtxRetain &first 0",
        "cuDevicePrimaryCtxRetain &second 1",
    ]);
    let on = |client: &mut Client, context: &str, orders: &[&str]| {
        client.ok(&[&format!("cuCtxSetCurrent ${context}")]);
        client.ok(orders);
    };
    for context in ["first", "second"] {
        on(&mut client, context, &[]);
        load(&mut client, &machine);
        client.ok(&[
            &format!("cuModuleGetFunction &meet_{context} $module \"sim_rendezvous_2_7\""),
            &format!("cuModuleGetFunction &busy_{context} $module \"sim_busy_ms_5\""),
            &format!("cuEventCreate &begin_{context} 0"),
            &format!("cuEventCreate &end_{context} 0"),
            &format!("cuEventRecord $begin_{context} 0"),
        ]);
    }
    let (meet_first, meet_second, busy) = (
        format!("cuLaunchKernel $meet_first {LAUNCH}"),
        format!("cuLaunchKernel $meet_second {LAUNCH}"),
        format!("cuLaunchKernel $busy_second {LAUNCH}"),
    );
    on(
        &mut client,
        "first",
        &[&meet_first, "cuEventRecord $end_first 0"],
    );
    on(
        &mut client,
        "second",
        &[&busy, &meet_second, "cuEventRecord $end_second 0"],
    );
    client.ok(&[
        "cuEventSynchronize $end_second",
        "cuEventSynchronize $end_first",
    ]);
    for context in ["first", "second"] {
        client.ok(&[&format!(
            "cuEventElapsedTime &ms $begin_{context} $end_{context}"
        )]);
        let ms = f32::from_ne_bytes(client.bytes("ms")[..4].try_into().expect("four"));
        assert_eq!(ms, 5.0, "{context}");
    }
}
