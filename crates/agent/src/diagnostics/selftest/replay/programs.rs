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

use divvy_api::v1::KnownProgram;

use super::step::Step;

/// The steps of a program, in its order.
pub fn steps(program: KnownProgram) -> &'static [Step] {
    match program {
        KnownProgram::PyTorch => pytorch::STEPS,
        KnownProgram::Jax => jax::STEPS,
        KnownProgram::TensorFlow => tensorflow::STEPS,
        KnownProgram::Vllm => vllm::STEPS,
        KnownProgram::SgLang => sglang::STEPS,
        KnownProgram::LlamaCpp => llama_cpp::STEPS,
        KnownProgram::Ollama => ollama::STEPS,
        KnownProgram::Triton => triton::STEPS,
        KnownProgram::Nccl => nccl::STEPS,
        KnownProgram::Rapids => rapids::STEPS,
    }
}

#[cfg(test)]
mod tests {
    use divvy_driver::probe::way;

    use super::*;
    use crate::diagnostics::selftest::replay::step::Act;

    #[test]
    fn every_step_names_its_calls_its_expectation_and_its_source() {
        for program in KnownProgram::ALL {
            let steps = steps(program);
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
        for step in KnownProgram::ALL.into_iter().flat_map(steps) {
            if let Act::Take { way: name, .. }
            | Act::Fill { way: name, .. }
            | Act::BackOff { way: name, .. } = step.act
            {
                assert!(way(name).is_some(), "{name}");
            }
        }
    }
}
