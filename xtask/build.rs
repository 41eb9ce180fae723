//! Build script without work, for the features of build dependencies: Cargo reads them only beside a build script
//! (Cargo.toml).

fn main() {}
