//! What goes wrong on the way: calls that take long, that fail, that nobody lives to see the end of.

use super::*;

#[test]
fn a_maker_that_dies_after_a_step_leaves_what_it_made() {
    let steps = [
        ("nvmlDeviceCreateGpuInstanceWithPlacement", "before", 0, 0),
        ("nvmlDeviceCreateGpuInstanceWithPlacement", "after", 1, 0),
        ("nvmlGpuInstanceCreateComputeInstance", "before", 1, 0),
        ("nvmlGpuInstanceCreateComputeInstance", "after", 1, 1),
    ];
    for (function, moment, parts, devices) in steps {
        let machine = Machine::new("a100-40gb:1");
        let config = format!("{ENABLED}[[fault]]\nfunction = '{function}'\nkill = '{moment}'\n");
        let Some(mut maker) = Admin::of(&machine.with_config(&config)) else {
            return;
        };
        maker
            .0
            .set("at", nvmlGpuInstancePlacement_t { start: 0, size: 4 });
        maker
            .0
            .tell("nvmlDeviceCreateGpuInstanceWithPlacement $device 9 &at &made");
        if !maker.0.answer().is_empty() {
            maker
                .0
                .tell("nvmlGpuInstanceCreateComputeInstance $made 2 &compute");
            assert_eq!(maker.0.answer(), "", "{function} {moment}");
        }
        let mut finder = Admin::on(machine.client()).expect("a client");
        assert_eq!(finder.list(9).len(), parts, "{function} {moment}");
        let order = "nvmlDeviceGetMigDeviceHandleByIndex $device 0 &mig";
        let found = finder.value(order, "mig").is_ok();
        assert_eq!(usize::from(found), devices, "{function} {moment}");
    }
}

#[test]
fn a_step_that_fails_once_has_changed_nothing_and_succeeds_again() {
    let machine = Machine::new("a100-40gb:1");
    let config =
        format!("{ENABLED}[[fault]]\nfunction = 'nvmlGpuInstanceDestroy'\ncode = 19\ntimes = 2\n");
    let Some(mut admin) = Admin::of(&machine.with_config(&config)) else {
        return;
    };
    let part = admin.create(9).expect("room");
    assert_eq!(admin.destroy(part), Err(IN_USE));
    assert_eq!(admin.destroy(part), Err(IN_USE));
    assert_eq!(admin.list(9), [part]);
    admin.destroy(part).expect("the third time");
}

#[test]
fn a_call_may_take_long_in_the_machines_own_time() {
    let machine = Machine::new("a100-40gb:2");
    let config = "clock = 'virtual'\n[mig]\nenabled = [1]\n\
                  [[fault]]\nfunction = 'nvmlDeviceCreateGpuInstance*'\ntimes = 0\ndelay_ms = 1500\n";
    let environment = machine.with_config(config);
    let Some(mut admin) = Admin::of(&environment) else {
        return;
    };
    admin.0.ok(&["nvmlDeviceGetHandleByIndex_v2 1 &device"]);
    let mut client = environment.with("CUDA_VISIBLE_DEVICES", "0").client();
    client.start();
    client.ok(&["cuEventCreate &before 0", "cuEventCreate &after 0"]);
    client.ok(&["cuEventRecord $before 0", "cuEventSynchronize $before"]);
    admin.create(9).expect("room, after a while");
    client.ok(&[
        "cuEventRecord $after 0",
        "cuEventSynchronize $after",
        "cuEventElapsedTime_v2 &ms $before $after",
    ]);
    let bits = client.small_value("ms");
    let passed = f32::from_bits(bits);
    assert!((1500.0..1501.0).contains(&passed), "{passed} ms");
}
