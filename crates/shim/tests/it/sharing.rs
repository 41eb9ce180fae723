//! Memory that goes from process to process is counted once in a slice, whoever made it and whoever is gone.

use divvy_ledger::{Control, Slice};

use crate::support::{CONTEXT, MIB, OUT_OF_MEMORY, Probe, ROOM, Rig, Way};

const SIZE: u64 = 64 * MIB;

/// The line by which another process opens what this one took last.
fn handle(probe: &mut Probe) -> String {
    named(probe, "ipc")
}

fn named(probe: &mut Probe, kind: &str) -> String {
    let said = probe.ask(&format!("{kind}get"));
    assert_eq!(said[0], 0);
    let words: Vec<_> = said[1..]
        .iter()
        .map(|word| (*word as i64).to_string())
        .collect();
    format!("{kind}open {}", words.join(" "))
}

#[test]
fn memory_opened_by_handle_is_counted_once_until_the_last_process_has_let_go() {
    for way in Way::ALL {
        let rig = Rig::new(2, ROOM);
        let (mut maker, mut user) = (rig.ready(way), rig.ready(way));
        assert_eq!(maker.ask(&format!("take linear {SIZE}")), [0, 0]);
        let open = handle(&mut maker);
        let all = 2 * CONTEXT + SIZE;
        assert_eq!(rig.charged(), all);
        // Opened twice it has to be closed twice.
        for _ in 0..2 {
            assert_eq!(user.ask(&open), [0, 0]);
            assert_eq!((rig.charged(), rig.truth()), (all, all), "{way:?}");
        }
        assert_eq!(maker.ask("give"), [0]);
        assert_eq!(
            (rig.charged(), rig.truth()),
            (all, all),
            "freed, but still open"
        );
        assert_eq!(user.ask("ipcclose"), [0]);
        assert_eq!(rig.charged(), all, "still open");
        assert_eq!(user.ask("ipcclose"), [0]);
        assert_eq!((rig.charged(), rig.truth()), (2 * CONTEXT, 2 * CONTEXT));
        maker.ends_silently();
        user.ends_silently();
    }
}

#[test]
fn what_a_killed_process_shared_stays_counted_while_others_have_it() {
    let rig = Rig::new(2, ROOM);
    let (mut maker, mut user) = (rig.ready(Way::Handle), rig.ready(Way::Handle));
    assert_eq!(maker.ask(&format!("take linear {SIZE}")), [0, 0]);
    let open = handle(&mut maker);
    assert_eq!(user.ask(&open), [0, 0]);
    maker.kill();
    rig.settle_the_dead();
    assert_eq!(
        (rig.charged(), rig.truth()),
        (CONTEXT + SIZE, CONTEXT + SIZE)
    );
    assert_eq!(user.ask("ipcclose"), [0]);
    assert_eq!((rig.charged(), rig.truth()), (CONTEXT, CONTEXT));
    user.ends_silently();
}

#[test]
fn memory_of_another_slice_is_charged_to_its_importer_and_refused_where_it_does_not_fit() {
    let rig = Rig::new(1, ROOM);
    let other = rig.path("other");
    Control::create(&other, &rig.spec(&rig.uuids[..1], CONTEXT + SIZE)).expect("another slice");
    let mut maker = rig.ready(Way::Handle);
    let mut command = rig.limited(&Probe::handle_program());
    let mut user = Probe::start(command.env("DIVVY_SLICE", &other));
    assert_eq!(user.ask("init"), [0]);
    assert_eq!(user.ask("context 0"), [0]);
    let charged = || Slice::open(&other).unwrap().usage(0).unwrap().used();
    assert_eq!(maker.ask(&format!("take linear {SIZE}")), [0, 0]);
    let open = handle(&mut maker);
    assert_eq!(user.ask(&open), [0, 0]);
    assert_eq!(charged(), CONTEXT + SIZE);
    assert_eq!(user.ask("ipcclose"), [0]);
    assert_eq!(charged(), CONTEXT);
    assert_eq!(user.ask("take linear 512"), [0, 0]);
    assert_eq!(user.ask(&open), [OUT_OF_MEMORY, 1]);
    assert_eq!(charged(), CONTEXT + 512);
    assert_eq!(user.ask("give"), [0]);
    assert_eq!(user.ask(&open), [0, 0], "what was refused was closed again");
    maker.ends_silently();
    user.ends_silently();
}

#[test]
fn memory_sent_by_descriptor_is_counted_once_until_the_last_process_has_let_go() {
    let rig = Rig::new(2, ROOM);
    let (mut maker, mut user) = (rig.ready(Way::Handle), rig.ready(Way::ProcAddress));
    let mailbox = rig.path("mailbox").display().to_string();
    assert_eq!(user.ask(&format!("mailbox {mailbox}")), [0]);
    assert_eq!(maker.ask(&format!("exportable {SIZE}")), [0]);
    let all = 2 * CONTEXT + SIZE;
    for _ in 0..2 {
        assert_eq!(maker.ask(&format!("send {mailbox}")), [0, 0]);
        assert_eq!(user.ask("receive"), [0, 0]);
        assert_eq!((rig.charged(), rig.truth()), (all, all));
    }
    assert_eq!(user.ask(&format!("mapit {SIZE}")), [0]);
    assert_eq!(maker.ask("give"), [0]);
    assert_eq!(
        (rig.charged(), rig.truth()),
        (all, all),
        "released, but imported"
    );
    assert_eq!(user.ask("giveall"), [0]);
    assert_eq!(
        (rig.charged(), rig.truth()),
        (all, all),
        "released, but mapped"
    );
    assert_eq!(user.ask("unmapit"), [0]);
    assert_eq!((rig.charged(), rig.truth()), (2 * CONTEXT, 2 * CONTEXT));
    maker.ends_silently();
    user.ends_silently();
}

/// A machine where the driver kills a process that imports, with the call not done; and a slice on it.
fn deadly(function: &str) -> Rig {
    let fault = format!("[[fault]]\nfunction = \"{function}\"\nkill = \"before\"\n");
    Rig::on(&fault, 2, ROOM)
}

/// The maker frees the memory while the driver does the importer's call: as much is charged as before, for the driver may keep
/// the memory for the importer.
#[track_caller]
fn is_held_while_the_driver_imports(rig: &Rig, mut maker: Probe) {
    assert_eq!(maker.ask("give"), [0]);
    assert_eq!(rig.charged(), 2 * CONTEXT + SIZE);
    rig.settle_the_dead();
    assert_eq!(rig.charged(), CONTEXT);
    maker.ends_silently();
}

#[test]
fn memory_opened_by_handle_is_held_before_the_driver_is_asked() {
    let rig = deadly("cuIpcOpenMemHandle*");
    let (mut maker, mut user) = (rig.ready(Way::Handle), rig.ready(Way::Handle));
    assert_eq!(maker.ask(&format!("take linear {SIZE}")), [0, 0]);
    let open = handle(&mut maker);
    user.say(&open);
    user.dies();
    is_held_while_the_driver_imports(&rig, maker);
}

#[test]
fn memory_sent_by_descriptor_is_held_before_the_driver_is_asked() {
    let rig = deadly("cuMemImportFromShareableHandle");
    let (mut maker, mut user) = (rig.ready(Way::Handle), rig.ready(Way::Handle));
    let mailbox = rig.path("mailbox").display().to_string();
    assert_eq!(user.ask(&format!("mailbox {mailbox}")), [0]);
    assert_eq!(maker.ask(&format!("exportable {SIZE}")), [0]);
    assert_eq!(maker.ask(&format!("send {mailbox}")), [0, 0]);
    user.say("receive");
    user.dies();
    is_held_while_the_driver_imports(&rig, maker);
}

#[test]
fn a_descriptor_whose_sender_is_gone_is_charged_when_it_is_imported() {
    let rig = Rig::new(2, SIZE);
    let (mut maker, mut user) = (rig.ready(Way::Handle), rig.ready(Way::Handle));
    let mailbox = rig.path("mailbox").display().to_string();
    assert_eq!(user.ask(&format!("mailbox {mailbox}")), [0]);
    for released in [false, true] {
        assert_eq!(maker.ask(&format!("exportable {SIZE}")), [0]);
        assert_eq!(maker.ask(&format!("send {mailbox}")), [0, 0]);
        if released {
            assert_eq!(maker.ask("give"), [0]);
            assert_eq!(maker.ask("take linear 512"), [0, 0]);
            assert_eq!(user.ask("receive"), [OUT_OF_MEMORY, 1], "no room for it");
            continue;
        }
        maker.kill();
        rig.settle_the_dead();
        assert_eq!(rig.charged(), CONTEXT, "in no process");
        assert_eq!(user.ask("receive"), [0, 0]);
        let all = CONTEXT + SIZE;
        assert_eq!((rig.charged(), rig.truth()), (all, all));
        assert_eq!(user.ask(&format!("mapit {SIZE}")), [0]);
        assert_eq!((rig.charged(), rig.truth()), (all, all), "charged once");
        assert_eq!(user.ask("unmapit"), [0]);
        assert_eq!(user.ask("giveall"), [0]);
        assert_eq!((rig.charged(), rig.truth()), (CONTEXT, CONTEXT));
        maker = rig.ready(Way::Handle);
    }
    user.ends_silently();
}

#[test]
fn a_descriptor_from_outside_is_charged_when_it_is_mapped() {
    let rig = Rig::new(1, SIZE);
    let (mut maker, mut user) = (rig.outside(), rig.ready(Way::Handle));
    let mailbox = rig.path("mailbox").display().to_string();
    assert_eq!(user.ask(&format!("mailbox {mailbox}")), [0]);
    assert_eq!(maker.ask("init"), [0]);
    assert_eq!(maker.ask(&format!("exportable {SIZE}")), [0]);
    assert_eq!(maker.ask(&format!("send {mailbox}")), [0, 0]);
    assert_eq!(user.ask("receive"), [0, 0]);
    assert_eq!(user.ask("take linear 512"), [0, 0]);
    assert_eq!(rig.charged(), CONTEXT + 512);
    assert_eq!(user.ask("give"), [0]);
    assert_eq!(user.ask(&format!("mapit {SIZE}")), [0]);
    assert_eq!(rig.charged(), CONTEXT + SIZE);
    assert_eq!(user.ask("take linear 512"), [OUT_OF_MEMORY, 1]);
    assert_eq!(user.ask("unmapit"), [0]);
    assert_eq!(user.ask("giveall"), [0]);
    assert_eq!(rig.charged(), CONTEXT);
    user.ends_silently();
}

/// A maker and a user, with the lines by which memory goes from one to the other without a mark.
fn unmarked(rig: &Rig) -> ([Probe; 2], [String; 2]) {
    let (maker, mut user) = (rig.ready(Way::Handle), rig.ready(Way::Handle));
    let mailbox = rig.path("mailbox").display().to_string();
    assert_eq!(user.ask(&format!("mailbox {mailbox}")), [0]);
    let lines = [format!("exportable {SIZE}"), format!("sendbare {mailbox}")];
    ([maker, user], lines)
}

#[test]
fn an_import_without_a_mark_keeps_the_exporters_memory_in_the_slice() {
    let rig = Rig::new(2, 3 * SIZE);
    let ([mut maker, mut user], [create, send]) = unmarked(&rig);
    let all = 2 * CONTEXT;
    for held in 1..=3 {
        assert_eq!(maker.ask(&create), [0]);
        assert_eq!(maker.ask(&send), [0, 0]);
        assert_eq!(user.ask("receive"), [0, 0]);
        assert_eq!(maker.ask("give"), [0]);
        let held = all + held * SIZE;
        assert_eq!((rig.charged(), rig.truth()), (held, held), "imported");
    }
    assert_eq!(maker.ask(&create), [OUT_OF_MEMORY], "the slice is full");
    assert_eq!(user.ask("giveall"), [0]);
    assert_eq!((rig.charged(), rig.truth()), (all, all));
    // A process that dies holds nothing either.
    assert_eq!(maker.ask(&create), [0]);
    assert_eq!(maker.ask(&send), [0, 0]);
    assert_eq!(user.ask("receive"), [0, 0]);
    user.kill();
    rig.settle_the_dead();
    assert_eq!(maker.ask("give"), [0]);
    assert_eq!((rig.charged(), rig.truth()), (CONTEXT, CONTEXT));
    maker.ends_silently();
}

#[test]
fn memory_without_a_mark_is_counted_once_when_it_is_mapped_and_its_exporter_has_released_it() {
    let rig = Rig::new(2, SIZE);
    let ([mut maker, mut user], [create, send]) = unmarked(&rig);
    let all = 2 * CONTEXT + SIZE;
    for maps in [1, 2] {
        assert_eq!(maker.ask(&create), [0]);
        assert_eq!(maker.ask(&send), [0, 0]);
        assert_eq!(user.ask("receive"), [0, 0]);
        assert_eq!(maker.ask("give"), [0]);
        for _ in 0..maps {
            assert_eq!(user.ask(&format!("mapit {SIZE}")), [0]);
            assert_eq!((rig.charged(), rig.truth()), (all, all), "mapped");
            assert_eq!(user.ask("unmapit"), [0]);
        }
        assert_eq!((rig.charged(), rig.truth()), (all, all), "still a handle");
        assert_eq!(user.ask("giveall"), [0]);
        assert_eq!((rig.charged(), rig.truth()), (2 * CONTEXT, 2 * CONTEXT));
    }
    maker.ends_silently();
    user.ends_silently();
}

#[test]
fn memory_from_outside_is_charged_beside_what_its_importer_shares_itself() {
    let rig = Rig::new(1, 2 * SIZE);
    let (mut outside, mut user) = (rig.outside(), rig.ready(Way::Handle));
    let mailbox = rig.path("mailbox").display().to_string();
    assert_eq!(user.ask(&format!("mailbox {mailbox}")), [0]);
    assert_eq!(user.ask(&format!("exportable {SIZE}")), [0]);
    assert_eq!(user.ask(&format!("send {mailbox}")), [0, 0]);
    assert_eq!(user.ask("receive"), [0, 0], "its own");
    assert_eq!(rig.charged(), CONTEXT + SIZE);
    assert_eq!(outside.ask("init"), [0]);
    assert_eq!(outside.ask(&format!("exportable {SIZE}")), [0]);
    assert_eq!(outside.ask(&format!("sendbare {mailbox}")), [0, 0]);
    assert_eq!(user.ask("receive"), [0, 0]);
    assert_eq!(user.ask(&format!("mapit {SIZE}")), [0]);
    assert_eq!(rig.charged(), CONTEXT + 2 * SIZE);
    assert_eq!(user.ask("take linear 512"), [OUT_OF_MEMORY, 1]);
    assert_eq!(user.ask("unmapit"), [0]);
    assert_eq!(user.ask("giveall"), [0]);
    assert_eq!(rig.charged(), CONTEXT);
    user.ends_silently();
}

#[test]
fn external_memory_is_charged_until_neither_the_import_nor_a_mapping_is_left() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.ready(Way::Handle);
    for (bytes, fits) in [(ROOM - MIB, true), (ROOM, true), (ROOM + MIB, false)] {
        let expected = if fits { [0, 0] } else { [OUT_OF_MEMORY, 1] };
        assert_eq!(probe.ask(&format!("external {bytes}")), expected, "{bytes}");
        if fits {
            assert_eq!(rig.charged(), CONTEXT + bytes);
            assert_eq!(probe.ask(&format!("buffer {MIB}")), [0]);
            assert_eq!(probe.ask("endexternal"), [0]);
            assert_eq!(rig.charged(), CONTEXT + bytes, "still mapped");
            assert!(rig.charged() >= rig.truth());
            assert_eq!(probe.ask("give"), [0]);
        }
        assert_eq!((rig.charged(), rig.truth()), (CONTEXT, CONTEXT), "{bytes}");
    }
    probe.ends_silently();
}

#[test]
fn external_memory_is_charged_to_the_gpu_of_the_context_also_where_another_gpu_has_it() {
    let rig = Rig::new(1, ROOM);
    let both = rig.path("both");
    Control::create(&both, &rig.spec(&rig.uuids, rig.limit)).expect("a slice of both GPUs");
    let mut command = rig.limited(&Probe::handle_program());
    let mut probe = Probe::start(command.env("DIVVY_SLICE", &both));
    for line in ["init", "context 1", "context 0"] {
        assert_eq!(probe.ask(line), [0]);
    }
    assert_eq!(probe.ask(&format!("exportable {SIZE}")), [0]);
    let charged = || {
        let slice = Slice::open(&both).expect("a sound slice");
        [0, 1].map(|gpu| slice.usage(gpu).expect("a sound slice").used() - CONTEXT)
    };
    for (context, imported) in [(0, [SIZE, 0]), (1, [SIZE, SIZE])] {
        assert_eq!(charged(), [SIZE, 0]);
        assert_eq!(probe.ask(&format!("context {context}")), [0]);
        assert_eq!(probe.ask(&format!("externally {SIZE}")), [0]);
        assert_eq!((charged(), rig.truth()), (imported, CONTEXT + SIZE));
        assert_eq!(probe.ask("endexternal"), [0]);
    }
    probe.ends_silently();
}

#[test]
fn an_allocation_of_its_own_pool_that_a_process_imports_is_counted_once() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.ready(Way::Handle);
    let mailbox = rig.path("mailbox").display().to_string();
    assert_eq!(probe.ask(&format!("mailbox {mailbox}")), [0]);
    assert_eq!(probe.ask("sharedpool"), [0]);
    assert_eq!(probe.ask(&format!("take pool {SIZE}")), [0, 0]);
    assert_eq!(probe.ask(&format!("sendpool {mailbox}")), [0, 0]);
    assert_eq!(probe.ask("poolreceive"), [0]);
    let open = named(&mut probe, "pooled");
    assert_eq!(probe.ask(&open), [0, 0]);
    assert_eq!(probe.ask("sync"), [0]);
    let _ = probe.info();
    let all = CONTEXT + SIZE;
    assert_eq!((rig.charged(), rig.truth()), (all, all));
    probe.ends_silently();
}

#[test]
fn allocations_of_a_shared_pool_are_counted_once_also_when_their_maker_is_gone() {
    let rig = Rig::new(2, ROOM);
    let (mut maker, mut user) = (rig.ready(Way::Handle), rig.ready(Way::Handle));
    let mailbox = rig.path("mailbox").display().to_string();
    assert_eq!(user.ask(&format!("mailbox {mailbox}")), [0]);
    assert_eq!(maker.ask("sharedpool"), [0]);
    assert_eq!(maker.ask(&format!("take pool {SIZE}")), [0, 0]);
    let all = 2 * CONTEXT + SIZE;
    assert_eq!(rig.charged(), all);
    assert_eq!(maker.ask(&format!("sendpool {mailbox}")), [0, 0]);
    assert_eq!(user.ask("poolreceive"), [0]);
    let open = named(&mut maker, "pooled");
    assert_eq!(maker.ask("sync"), [0]);
    let _ = maker.info();
    assert_eq!((rig.charged(), rig.truth()), (all, all));
    assert_eq!(user.ask(&open), [0, 0]);
    assert_eq!((rig.charged(), rig.truth()), (all, all));
    maker.kill();
    rig.settle_the_dead();
    assert!(
        rig.charged() >= rig.truth(),
        "{} {}",
        rig.charged(),
        rig.truth()
    );
    assert_eq!(rig.charged(), CONTEXT + SIZE);
    assert_eq!(user.ask("give"), [0]);
    assert_eq!(rig.charged(), CONTEXT);
    user.ends_silently();
}
