//! Which GPUs a process sees.

use divvy_testkit::Bounded as _;

use crate::machine::Machine;

/// The UUIDs of the devices a process sees, in its order.
fn seen(machine: &Machine, variables: &[(&str, &str)]) -> Vec<Vec<u8>> {
    let mut environment = machine.with("NOTHING", "");
    for (name, value) in variables {
        environment = environment.with(name, value);
    }
    let mut client = environment.client();
    if client.call("cuInit 0") != 0 {
        return Vec::new();
    }
    client.ok(&["cuDeviceGetCount &count"]);
    let count = client.value("count");
    let mut uuid = |device| {
        client.ok(&[&format!("cuDeviceGetUuid_v2 &uuid {device}")]);
        client.bytes("uuid")[..16].to_vec()
    };
    (0..count).map(&mut uuid).collect()
}

fn text(uuid: &[u8]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "GPU-{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

#[test]
fn cuda_visible_devices_chooses_by_ordinal_and_uuid() {
    let machine = Machine::new("a100-80gb:3");
    let all = seen(&machine, &[]);
    assert_eq!(all.len(), 3);
    assert!(all[0] != all[1] && all[1] != all[2] && all[0] != all[2]);
    let chosen = |list: &str| seen(&machine, &[("CUDA_VISIBLE_DEVICES", list)]);
    assert_eq!(chosen("2,0"), [all[2].clone(), all[0].clone()]);
    assert_eq!(chosen(&text(&all[1])), [all[1].clone()]);
    assert_eq!(
        chosen(&format!("{},{}", &text(&all[2])[..12], text(&all[0]))),
        [all[2].clone(), all[0].clone()]
    );
    assert_eq!(chosen("1,7,0"), [all[1].clone()]);
    assert!(chosen("").is_empty() && chosen("GPU-").is_empty() && chosen("-1").is_empty());
}

#[test]
fn the_fastest_gpu_comes_first_unless_the_bus_order_is_asked_for() {
    let machine = Machine::new("l4-24gb:1,h200-141gb:1");
    let (fastest, by_bus) = (
        seen(&machine, &[]),
        seen(&machine, &[("CUDA_DEVICE_ORDER", "PCI_BUS_ID")]),
    );
    assert_eq!(by_bus, [fastest[1].clone(), fastest[0].clone()]);
    assert_eq!(
        seen(
            &machine,
            &[
                ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
                ("CUDA_VISIBLE_DEVICES", "0")
            ]
        ),
        [fastest[1].clone()]
    );
}

#[test]
fn uuids_are_the_same_in_every_process_and_differ_between_machines() {
    let (machine, other) = (Machine::new("l4-24gb:1"), Machine::new("l4-24gb:1"));
    assert_eq!(seen(&machine, &[]), seen(&machine, &[]));
    assert_ne!(seen(&machine, &[]), seen(&other, &[]));
}

#[test]
fn memory_of_a_chosen_gpu_is_that_gpus() {
    let machine = Machine::new("a100-80gb:2");
    let (mut all, mut second) = (
        machine.client(),
        machine.with("CUDA_VISIBLE_DEVICES", "1").client(),
    );
    all.ok(&["cuInit 0", "cuCtxCreate_v2 &context 0 1"]);
    let before = all.memory();
    second.start();
    second.ok(&["cuMemAlloc_v2 &a 1073741824"]);
    assert!(before.0 - all.memory().0 >= 1 << 30);
}

#[test]
fn a_bad_description_of_the_machine_is_one_line_on_stderr_and_an_error_code() {
    let explain = |variables: &[(&str, &str)]| {
        let machine = Machine::new("l4-24gb:1");
        let mut environment = machine.with("NOTHING", "");
        for (name, value) in variables {
            environment = environment.with(name, value);
        }
        let mut child = environment
            .command()
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("starts");
        std::io::Write::write_all(
            &mut child.stdin.take().expect("piped"),
            b"cuInit 0\nnvmlInit_v2\ncuInit 0\n",
        )
        .expect("listens");
        let output = child.output_bounded().expect("ends");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "100\n9\n100\n");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(text.lines().count(), 1, "{text}");
        text
    };
    let unknown = explain(&[("DIVVY_SIM", "v100:2")]);
    assert!(
        unknown.contains("`v100`")
            && unknown.contains("a100-40gb")
            && unknown.contains("rtx4090-24gb"),
        "{unknown}"
    );
    assert!(explain(&[("DIVVY_SIM", "")]).contains("DIVVY_SIM is not set"));
    assert!(explain(&[("DIVVY_SIM_STATE", "")]).contains("DIVVY_SIM_STATE is not set"));
    assert!(explain(&[("DIVVY_SIM_STATE", "/proc/version")]).contains("/proc/version"));
    assert!(explain(&[("DIVVY_SIM_CONFIG", "/nowhere")]).contains("/nowhere"));
}

#[test]
fn another_machine_under_the_same_name_is_refused() {
    let machine = Machine::new("l4-24gb:1");
    machine.client().ok(&["cuInit 0"]);
    let mut other = machine.with("DIVVY_SIM", "l4-24gb:2").client();
    assert_eq!(other.call("cuInit 0"), 100);
    machine.with("DIVVY_SIM", "").client().ok(&["cuInit 0"]);
}
