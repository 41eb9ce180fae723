//! The limiter on instances of divided GPUs: the driver holds a job to its instance, so it has no slice, and a limiter that is in its
//! programs all the same keeps out of the way.

use crate::support::{CONTEXT, MIB, OUT_OF_MEMORY, Probe, ROOM, Rig, Way};

/// GPU 0 has two instances, which are CUDA's devices 0 and 1; GPU 1, which is not divided, is device 2.
const DIVIDED: &str = "[mig]\nenabled = [0]\n\
    [[mig.instance]]\ngpu = 0\nprofile = '1g.10gb'\nstart = 0\n\
    [[mig.instance]]\ngpu = 0\nprofile = '1g.10gb'\nstart = 1\n";
const KINDS: [&str; 5] = ["linear", "managed", "vmm", "async", "pitch"];

fn without_slice(rig: &Rig, way: Way) -> Probe {
    let mut command = rig.limited(&way.program());
    Probe::start(command.env_remove("DIVVY_SLICE"))
}

#[test]
fn on_an_instance_a_process_without_a_slice_has_what_the_driver_gives() {
    let rig = Rig::on(DIVIDED, 1, ROOM);
    for way in Way::ALL {
        let mut probe = without_slice(&rig, way);
        assert_eq!(probe.ask("init"), [0]);
        assert_eq!(probe.ask("context 1"), [0]);
        let (free, total) = probe.info();
        assert_eq!(total - free, CONTEXT, "{way:?}");
        assert_eq!(probe.ask("total 1"), [0, total]);
        for kind in KINDS {
            assert_eq!(
                probe.ask(&format!("take {kind} {}", 64 * MIB)),
                [0, 0],
                "{way:?} {kind}"
            );
            assert_eq!(probe.ask("give"), [0]);
        }
        // The end is the instance's, and the driver's word for it.
        assert_eq!(
            probe.ask(&format!("take linear {}", total - CONTEXT + 2 * MIB)),
            [OUT_OF_MEMORY, 1]
        );
        assert_eq!(
            probe.ask(&format!("take linear {}", total - CONTEXT - 64 * MIB)),
            [0, 0]
        );
        probe.ends_silently();
    }
    assert_eq!(rig.charged(), 0);
}

#[test]
fn of_instances_nvml_says_inside_what_it_says_outside() {
    let rig = Rig::on(DIVIDED, 1, ROOM);
    let (mut inside, mut outside) = (without_slice(&rig, Way::Handle), rig.outside());
    for probe in [&mut inside, &mut outside] {
        assert_eq!(probe.ask("init"), [0]);
    }
    assert_eq!(inside.ask("context 0"), [0]);
    assert_eq!(inside.ask(&format!("take linear {}", 64 * MIB)), [0, 0]);
    for line in ["nvml 0", "processes 0 3 8", "total 0", "total 2"] {
        assert_eq!(inside.ask(line), outside.ask(line), "{line}");
    }
    inside.ends_silently();
}

#[test]
fn on_a_whole_gpu_beside_instances_a_process_without_a_slice_gets_nothing() {
    let rig = Rig::on(DIVIDED, 1, ROOM);
    let mut probe = without_slice(&rig, Way::Handle);
    assert_eq!(probe.ask("init"), [0]);
    assert_eq!(probe.ask("context 2"), [0]);
    assert_eq!(probe.info().0, 0);
    for kind in KINDS {
        assert_eq!(
            probe.ask(&format!("take {kind} {}", 2 * MIB)),
            [OUT_OF_MEMORY, 1],
            "{kind}"
        );
    }
    let said = probe.last_words();
    assert!(said.starts_with("divvy: GPU memory is refused: "), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn a_slice_that_cannot_be_trusted_gives_nothing_on_an_instance_either() {
    let rig = Rig::on(DIVIDED, 1, ROOM);
    let mut command = rig.limited(&Probe::handle_program());
    let mut probe = Probe::start(command.env("DIVVY_SLICE", rig.path("nowhere")));
    assert_eq!(probe.ask("init"), [0]);
    assert_eq!(probe.ask("context 0"), [0]);
    assert_eq!(probe.info().0, 0);
    assert_eq!(probe.ask("take linear 512"), [OUT_OF_MEMORY, 1]);
    assert!(probe.last_words().contains("nowhere"));
}

#[test]
fn a_slice_of_an_instance_gives_nothing_and_says_why() {
    // The rig's slice is of CUDA's first device, which is an instance.
    let rig = Rig::on(DIVIDED, 1, ROOM);
    let mut probe = rig.inside(Way::Handle);
    assert_eq!(probe.ask("init"), [0]);
    assert_eq!(probe.ask("context 0"), [0]);
    assert_eq!(probe.info().0, 0);
    for kind in KINDS {
        assert_eq!(
            probe.ask(&format!("take {kind} {}", 2 * MIB)),
            [OUT_OF_MEMORY, 1],
            "{kind}"
        );
    }
    let said = probe.last_words();
    assert_eq!(said.lines().count(), 1, "{said}");
    for word in ["refused", "MIG device", "without a slice"] {
        assert!(said.contains(word), "{said}");
    }
    assert_eq!(rig.charged(), 0);
}
