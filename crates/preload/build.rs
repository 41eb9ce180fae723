//! Never unloaded: hooks are on other threads' stacks, and their addresses in other libraries' tables.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
