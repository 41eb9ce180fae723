//! `divvy suspend --release-memory`: a job gives its GPU to another for a while, as people see it.

use divvy_api::v1::JobState;
use divvy_e2e::{Home, MIB, until};

#[test]
fn a_parked_job_says_where_its_memory_is_and_what_brings_it_back() {
    let home = Home::new("a100-40gb:1");
    let _daemon = home.daemon(&[]);
    let tested = home.divvy(&["selftest", "--park"]);
    assert!(tested.stdout.contains("and unchanged"), "{tested:?}");
    let first = home.submit_holder(&["-g", "0.75"], 320 * MIB, "first");
    home.running(&first);
    let _ = home.first_words(&first);
    let parked = home.divvy(&["park", &first]);
    assert_eq!(parked.code, 0, "{parked:?}");
    let wake = format!("`divvy wake {first}` brings it back");
    assert!(parked.stderr.contains(&wake), "{parked:?}");
    let described = home.divvy(&["describe", &first]).stdout;
    assert!(
        described.contains("gpu memory:  in host memory"),
        "{described}"
    );
    let inside = home.divvy(&["exec", &first, "--", "echo", "still here"]);
    assert!(inside.stdout.contains("still here"), "{inside:?}");
    let again = home.divvy(&["park", &first]);
    assert_eq!(again.code, 8, "{again:?}");
    assert!(again.stderr.contains("is parked"), "{again:?}");
    assert_eq!(home.divvy(&["wake", &first]).code, 0);
    until("it is woken", || {
        home.job(&first).gpu_memory.is_none().then_some(())
    });
    home.open("first");
    assert_eq!(home.ended(&first).exit_code, Some(0));
}

#[test]
fn a_job_that_is_suspended_without_its_gpu_makes_room_and_says_where_its_memory_is() {
    let home = Home::new("a100-40gb:1");
    let _daemon = home.daemon(&[]);
    let first = home.submit_holder(&["-g", "0.75"], 320 * MIB, "first");
    home.running(&first);
    let _ = home.first_words(&first);
    let second = home.submit_holder(&["-g", "0.5"], 200 * MIB, "second");
    assert_eq!(home.job(&second).state, JobState::Queued);

    let said = home.divvy(&["suspend", "--release-memory", &first]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(
        said.stderr.contains("is suspended: holds no GPU"),
        "{said:?}"
    );
    home.running(&second);
    let _ = home.first_words(&second);
    let described = home.divvy(&["describe", &first]);
    assert!(
        described
            .stdout
            .contains("gpu memory:  in host memory; the job holds no GPU"),
        "{described:?}"
    );
    let gpus = home.items(&["gpus"]);
    assert_eq!(
        (
            &gpus[0]["share_allocated"],
            gpus[0]["slices"].as_array().map(Vec::len)
        ),
        (&500.into(), Some(1))
    );

    let said = home.divvy(&["resume", &first]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.stderr.contains("resuming"), "{said:?}");
    let why = home.divvy(&["why", &first]);
    assert!(
        why.stdout.contains(&format!("(there: #{second})")),
        "{why:?}"
    );
    home.open("second");
    assert_eq!(home.ended(&second).exit_code, Some(0));
    until("it goes on", || (!home.job(&first).suspended).then_some(()));
    home.open("first");
    assert_eq!(home.ended(&first).exit_code, Some(0));
}
