//! The example of the crate's documentation.

#[path = "../../examples/slice.rs"]
mod slice;

#[test]
fn the_example_of_the_slices_account_runs() {
    slice::main().expect("each step of the example succeeds");
}
