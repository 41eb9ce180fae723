//! Does nothing: Cargo reads the build dependencies of a package only if it has a build script (Cargo.toml says what for).

fn main() {}
