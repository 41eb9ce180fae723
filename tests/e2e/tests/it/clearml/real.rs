//! Bodies of the other tests against a real ClearML server, with the stock agent; skipped, and said so, where none is named.

use std::sync::Arc;

use divvy_e2e::clearml::{Agent, Scene, Server};

use crate::clearml::{life, placement};

fn scene(gpus: usize) -> Option<Scene> {
    let server = Arc::new(Server::real()?);
    Some(Scene::with(
        server,
        &format!("a100-80gb:{gpus}"),
        Agent::Stock,
    ))
}

macro_rules! bodies {
    ($($name:ident ($gpus:literal) => $body:path;)*) => {
        $(#[test]
        fn $name() {
            if let Some(scene) = scene($gpus) {
                $body(&scene);
            }
        })*
    };
}

bodies! {
    the_seeds_example (3) => placement::seeds_example;
    parts_go_where_they_leave_least (3) => placement::parts_go_where_they_leave_least;
    nothing_starts_below_a_head_that_does_not_fit (1) => placement::the_first_that_does_not_fit_stops_the_rest;
    nothing_is_pulled_from_a_queue_that_is_switched_off (1) => placement::a_queue_that_is_switched_off_waits;
    an_abort_stops_the_program (1) => life::an_abort_stops_the_program;
    a_failed_program_makes_a_failed_task (1) => life::a_failed_program_frees_its_slot;
    a_daemon_that_is_killed_knows_its_slots (1) => life::a_killed_daemon_knows_its_slots;
}
