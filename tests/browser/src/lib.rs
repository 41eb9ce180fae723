//! The page of `divvy web` in a real browser: Debian's Chromium, driven through WebDriver.
//!
//! ```text
//! Browser    a headless Chromium of its own, with an empty profile; its processes end with it
//! Look       light or dark, and the size of the window
//! Witness    a script before the page's own: what the page executed, which rules of the policy it broke, its errors
//! cost       first paint, bytes, bytes a second
//! Traffic    the bytes that the browser received
//! axe        axe-core, which finds barriers to people with disabilities
//! foreign    another site on another port of this machine
//! past       a history of figures on disk, from a seed
//! lab        a machine with GPUs, users and jobs, from a seed
//! ```
//! A test skips, and prints the reason, where Chromium or its driver is missing.
#![forbid(unsafe_code)]

pub mod axe;
mod browser;
mod chromium;
pub mod cost;
pub mod foreign;
pub mod lab;
pub mod past;
mod traffic;
mod webdriver;
mod witness;

pub use browser::{Browser, Look};
pub use traffic::Traffic;
pub use webdriver::Key;
pub use witness::Witness;
