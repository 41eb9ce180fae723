//! The steps of each program, as its public sources have them; docs/programs.md has the sources.

mod jax;
mod llama_cpp;
mod nccl;
mod ollama;
mod pytorch;
mod rapids;
mod sglang;
mod tensorflow;
mod triton;
mod vllm;

use divvy_driver::probe::way;

use super::step::{Act, Step};

/// Each program with its steps, in its order.
pub const PROGRAMS: [(&str, &[Step]); 10] = [
    ("pytorch", pytorch::STEPS),
    ("jax", jax::STEPS),
    ("tensorflow", tensorflow::STEPS),
    ("vllm", vllm::STEPS),
    ("sglang", sglang::STEPS),
    ("llama.cpp", llama_cpp::STEPS),
    ("ollama", ollama::STEPS),
    ("triton", triton::STEPS),
    ("nccl", nccl::STEPS),
    ("rapids", rapids::STEPS),
];

/// The steps of a program.
pub fn steps(program: &str) -> &'static [Step] {
    let found = PROGRAMS.into_iter().find(|(name, _)| *name == program);
    found.expect("a program of the list").1
}

#[test]
fn every_step_names_its_calls_its_expectation_and_its_source() {
    for (program, steps) in PROGRAMS {
        assert!(steps.len() >= 4, "{program}");
        for step in steps {
            for text in [step.calls, step.expects, step.source] {
                assert!(!text.is_empty() && text.len() < 120, "{program}: {text}");
            }
            assert!(step.source.contains(['/', '.']), "{}", step.source);
        }
    }
}

#[test]
fn every_way_to_allocate_is_one_of_the_drivers() {
    for step in PROGRAMS.into_iter().flat_map(|(_, steps)| steps) {
        if let Act::Take { way: name, .. }
        | Act::Fill { way: name, .. }
        | Act::BackOff { way: name, .. } = step.act
        {
            assert!(way(name).is_some(), "{name}");
        }
    }
}
